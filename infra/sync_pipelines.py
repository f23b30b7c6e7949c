"""Write the table of diffusers' pipelines that make images: `processors/image_generation/pipelines.json`.

Processors do not import diffusers, so they read from this table which parameters a pipeline takes. Run it with the
version of diffusers in `constraints.txt`: `python infra/sync_pipelines.py`. A test compares the table with the library.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parent.parent / "processors" / "image_generation" / "pipelines.json"

#: Parameters of pipelines that requests have, by the library's names.
KNOWN = (
    "prompt", "negative_prompt", "image", "mask_image", "strength", "guidance_scale", "true_cfg_scale",
    "num_inference_steps", "height", "width", "class_labels",
)  # fmt: skip
#: Classes that AutoPipeline does not know, by their tasks.
_WITHOUT_TEXT = {"DDPMPipeline": "nothing", "DDIMPipeline": "nothing", "DiTPipeline": "label"}
#: Pipelines whose names have one of these need a further network or image, change networks while they run, or are
#: one of several stages.
_OTHER = ("ControlNet", "Control", "PAG", "Pix2Pix", "Layered", "Helios", "GlmImage", "Combined", "IF")


def table() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the calls of each family: family -> task -> class and defaults."""
    import diffusers
    from diffusers.pipelines import auto_pipeline as auto

    tasks = {
        "text": auto.AUTO_TEXT2IMAGE_PIPELINES_MAPPING,
        "image": auto.AUTO_IMAGE2IMAGE_PIPELINES_MAPPING,
        "inpaint": auto.AUTO_INPAINT_PIPELINES_MAPPING,
    }
    made: dict[str, dict[str, dict[str, Any]]] = {
        name.removesuffix("Pipeline").lower(): {task: _call(getattr(diffusers, name))}
        for name, task in _WITHOUT_TEXT.items()
    }
    for task, mapping in tasks.items():
        for family, pipeline in mapping.items():
            if not any(word in pipeline.__name__ for word in _OTHER):
                made.setdefault(family, {})[task] = _call(pipeline)
    return made


def _call(pipeline: Any) -> dict[str, Any]:
    parameters = inspect.signature(pipeline.__call__).parameters
    named = {name: parameters[name].default for name in KNOWN if name in parameters}
    plain = {name: value if isinstance(value, int | float) else None for name, value in named.items()}
    return {"pipeline": pipeline.__name__, "parameters": plain}


def text() -> str:
    """Return the table's file."""
    return json.dumps(table(), indent=1) + "\n"


if __name__ == "__main__":
    TABLE.write_text(text())
