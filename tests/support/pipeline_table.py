"""Every family of pipelines of images that diffusers' AutoPipeline knows: its tasks, and what the tests show."""

from __future__ import annotations

import json

from infra.sync_pipelines import TABLE
from tests.support.pipelines import FAMILIES

#: Tested with Stable Diffusion's own steps, and by the library's calls for its other tasks.
_STEPPED = "stable-diffusion"


def table() -> str:
    """Return the table of `docs/reference/what-runs.md`."""
    rows = ["| family | `_class_name` | tasks | tested |", "| --- | --- | --- | --- |"]
    words = {"text": "text to image", "image": "image to image", "inpaint": "inpainting"}
    for family, calls in sorted(json.loads(TABLE.read_text(encoding="utf-8")).items()):
        classes = ", ".join(f"`{name}`" for name in dict.fromkeys(call["pipeline"] for call in calls.values()))
        tested = "yes" if family in FAMILIES or family == _STEPPED else "not tested"
        rows.append(f"| `{family}` | {classes} | {', '.join(words[task] for task in calls)} | {tested} |")
    return "\n".join(rows)
