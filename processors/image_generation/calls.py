"""The calls of diffusers' pipelines: which tasks a pipeline has, and which parameters each takes.

The table `pipelines.json` is written by `infra/sync_pipelines.py` from the signatures of the library, which processors
do not import.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_TABLE = Path(__file__).with_name("pipelines.json")
#: Fields of requests -> the parameters of pipelines.
PARAMETERS: Mapping[str, str] = {
    "prompt": "prompt",
    "label": "class_labels",
    "negative_prompt": "negative_prompt",
    "image": "image",
    "mask": "mask_image",
    "strength": "strength",
    "guidance_scale": "guidance_scale",
    "true_cfg_scale": "true_cfg_scale",
    "steps": "num_inference_steps",
    "height": "height",
    "width": "width",
}


class Task(StrEnum):
    """The source of an image: that of a task of AutoPipeline, a label or nothing."""

    TEXT = "text"
    IMAGE = "image"
    INPAINT = "inpaint"
    LABEL = "label"
    NOTHING = "nothing"

    @property
    def words(self) -> str:
        """The task as users call it."""
        named = {"text": "text to image", "image": "image to image", "inpaint": "inpainting", "label": "label to image"}
        return named.get(self.value, "image without a text")


@dataclass(frozen=True, slots=True)
class Call:
    """The call of a class of pipelines, for one task."""

    task: Task
    #: Name of the class.
    pipeline: str
    #: Parameters by the library's names, with the defaults that are numbers.
    parameters: Mapping[str, float | None]

    def takes(self, field: str) -> bool:
        """Return True if the call takes a field of a request."""
        return PARAMETERS[field] in self.parameters

    def default(self, field: str) -> float | None:
        """Return the library's default of a field, if it is a number."""
        return self.parameters.get(PARAMETERS[field])


def calls_of(name: str) -> Mapping[Task, Call]:
    """Return the calls of the family of a class of pipelines; empty for a class that the table lacks."""
    for family in _families():
        if any(call.pipeline == name for call in family.values()):
            return family
    return {}


@cache
def _families() -> tuple[Mapping[Task, Call], ...]:
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        {Task(task): Call(Task(task), call["pipeline"], call["parameters"]) for task, call in family.items()}
        for family in table.values()
    )
