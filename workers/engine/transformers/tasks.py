"""The task of a hub directory, from its `config.json` and the catalogue. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from penstock.errors import ModelUnavailable


class Task(StrEnum):
    """Tasks of models, as `options.task` in the catalogue may name them."""

    IMAGE_CLASSIFICATION = "image-classification"
    SEMANTIC_SEGMENTATION = "semantic-segmentation"
    INSTANCE_SEGMENTATION = "instance-segmentation"
    OBJECT_DETECTION = "object-detection"
    DEPTH_ESTIMATION = "depth-estimation"
    ZERO_SHOT_CLASSIFICATION = "zero-shot-classification"
    ZERO_SHOT_OBJECT_DETECTION = "zero-shot-object-detection"
    MASK_GENERATION = "mask-generation"
    IMAGE_EMBEDDING = "image-embedding"
    IMAGE_TEXT_TO_TEXT = "image-text-to-text"
    TEXT_CLASSIFICATION = "text-classification"
    TEXT_EMBEDDING = "text-embedding"
    TEXT_GENERATION = "text-generation"
    TEXT_IMAGE_EMBEDDING = "text-image-embedding"
    SPEECH_RECOGNITION = "speech-recognition"
    AUDIO_CLASSIFICATION = "audio-classification"


@dataclass(frozen=True, slots=True)
class Known:
    """The model types of the installed library, by task and all."""

    by_task: Mapping[Task, frozenset[str]]
    all: frozenset[str]

    def tasks(self, model_type: str) -> tuple[Task, ...]:
        """Return the tasks of a model type."""
        return tuple(task for task in Task if model_type in self.by_task[task])


#: Tasks by the end of a class's name in `architectures`, for tasks with a head of their own.
_HEADS = (
    ("ForImageClassification", Task.IMAGE_CLASSIFICATION),
    ("ForImageClassificationWithTeacher", Task.IMAGE_CLASSIFICATION),
    ("ForSemanticSegmentation", Task.SEMANTIC_SEGMENTATION),
    ("LlavaForConditionalGeneration", Task.IMAGE_TEXT_TO_TEXT),
    ("LlavaNextForConditionalGeneration", Task.IMAGE_TEXT_TO_TEXT),
    ("Qwen2VLForConditionalGeneration", Task.IMAGE_TEXT_TO_TEXT),
    ("ForUniversalSegmentation", Task.INSTANCE_SEGMENTATION),
    ("ForInstanceSegmentation", Task.INSTANCE_SEGMENTATION),
    ("ForSegmentation", Task.INSTANCE_SEGMENTATION),
    ("ForObjectDetection", Task.OBJECT_DETECTION),
    ("ForDepthEstimation", Task.DEPTH_ESTIMATION),
    ("ForCausalLM", Task.TEXT_GENERATION),
    ("LMHeadModel", Task.TEXT_GENERATION),
    ("WhisperForConditionalGeneration", Task.SPEECH_RECOGNITION),
    ("ForAudioClassification", Task.AUDIO_CLASSIFICATION),
    ("ForSequenceClassification", Task.AUDIO_CLASSIFICATION),
    ("ForSequenceClassification", Task.TEXT_CLASSIFICATION),
    # Encoder-decoders of texts; those of images and speech are above.
    ("ForConditionalGeneration", Task.TEXT_GENERATION),
    ("MTModel", Task.TEXT_GENERATION),
    ("ForTextToText", Task.TEXT_GENERATION),
)


#: Tasks that the shipped processors need, by the names of processors.
_NEEDED: Mapping[str, Task] = MappingProxyType(
    {
        **{task.value: task for task in Task},
        "image-segmentation": Task.SEMANTIC_SEGMENTATION,
        "raster-detection": Task.OBJECT_DETECTION,
        "raster-embedding": Task.IMAGE_EMBEDDING,
        "raster-mask-generation": Task.MASK_GENERATION,
        "raster-segmentation": Task.SEMANTIC_SEGMENTATION,
        "raster-zero-shot-detection": Task.ZERO_SHOT_OBJECT_DETECTION,
        "text-ranking": Task.TEXT_CLASSIFICATION,
        "video-classification": Task.IMAGE_CLASSIFICATION,
        "video-segmentation": Task.SEMANTIC_SEGMENTATION,
    }
)


def wanted(processor: str, asked: object) -> object:
    """Return the wanted task: the option's task, else the processor's; None without either.

    Raises `ModelUnavailable` for an option that is not the processor's task.
    """
    needed = _NEEDED.get(processor)
    if needed is None or asked is None:
        return asked or needed
    if asked != needed and asked in list(Task):
        raise ModelUnavailable(
            f"the processor {processor!r} is for the task {needed.value!r}, and `options.task` is {asked!r}"
        )
    return asked


def resolve(config: Mapping[str, Any], asked: object, known: Known) -> Task:
    """Return the task of a directory: the wanted one, else the task of its architecture.

    Raises `ModelUnavailable` with the possible tasks.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelUnavailable("config.json has no `model_type`: it is not the directory of a transformers model")
    if model_type not in known.all:
        raise ModelUnavailable(f"config.json has the unknown model_type {model_type!r}{_nearest(model_type, known)}")
    possible = known.tasks(model_type)
    if asked is not None:
        return _asked(asked, model_type, possible)
    architectures = config.get("architectures") or ()
    for head, task in _HEADS:
        if task in possible and any(str(name).endswith(head) for name in architectures):
            return task
    for task in (Task.IMAGE_EMBEDDING, Task.TEXT_EMBEDDING):
        # A bare model without a head; a model with a head serves as one if `options.task` names the task.
        if task in possible and any(str(name).endswith("Model") for name in architectures):
            return task
    made_for = ", ".join(map(str, architectures)) or "none"
    raise ModelUnavailable(
        f"config.json has the architectures {made_for}, without a known task; model_type {model_type!r} can do: "
        f"{', '.join(possible) or 'nothing that this runner knows'}. Set one of them as `options.task`"
    )


def _asked(asked: object, model_type: str, possible: tuple[Task, ...]) -> Task:
    try:
        task = Task(str(asked))
    except ValueError as error:
        raise ModelUnavailable(f"there is no task {asked!r}; known tasks: {', '.join(Task)}") from error
    if task not in possible:
        raise ModelUnavailable(
            f"the task {task.value!r} does not fit model_type {model_type!r}, which can do: "
            f"{', '.join(possible) or 'nothing that this runner knows'}"
        )
    return task


def _nearest(model_type: str, known: Known) -> str:
    near = get_close_matches(model_type, known.all, n=3)
    return f"; near it are: {', '.join(near)}" if near else f"; this version of transformers knows {len(known.all)}"
