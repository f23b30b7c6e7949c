"""Every family of pipelines of images that is served: its tasks, and what the tests show."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

from infra.sync_pipelines import TABLE
from penstock.processors.image_generation.calls import Task
from tests.support.pipelines import FAMILIES

#: Families that the tests make beside those of `FAMILIES`.
_OTHERS = ("ddim", "ddpm", "dit", "stable-diffusion")
_TASK = "[`image-generation`](../howto/generate-images.md)"


def rows() -> Iterator[str]:
    """Yield the rows of `docs/reference/what-runs.md`: families by their tasks, tested ones first."""
    groups = defaultdict(list)
    for family, calls in sorted(json.loads(TABLE.read_text(encoding="utf-8")).items()):
        untested = family not in FAMILIES and family not in _OTHERS
        groups[untested, ", ".join(Task(task).words for task in calls)].append(f"`{family}`")
    for (untested, tasks), families in sorted(groups.items()):
        tested = "not tested" if untested else "diffusers 0.42, images equal bit by bit"
        yield f"| {', '.join(families)} | {_TASK} | {tasks} | directory (`diffusers`) | {tested} |"
