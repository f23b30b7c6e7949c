"""The values that networks of the hub signature, by task; without the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.io_signature import IOSignature, Offers
from penstock.workers.engine.base import Hosting
from penstock.workers.engine.transformers.tasks import Task, wanted

_PIXELS = {"pixels": "float32 (channels, H, W)"}
#: Inputs that the library's own processor makes, with their batch axis, and the names of the wanted outputs.
_INPUTS = {"inputs.*": "array", "outputs": "list"}
_TOKENS = {"input_ids": "int64 (tokens)"}
_SHOWN = {"shown": "list"}
_EMBEDDING = {"embedding": "float32 (dimensions)"}
_SAMPLING = {"max_new_tokens": "number"}
_SAMPLED = dict.fromkeys(("temperature", "top_p", "seed"), "number")
_TEXT = {"token_ids": "list", "finish_reason": "text"}
_CLASSES = IOSignature(prompt=_PIXELS, optional={"size": "list"}, output={"classes": "uint8 (H, W) or uint16 (H, W)"})

BY_TASK: Mapping[Task, Sequence[IOSignature]] = MappingProxyType(
    {
        Task.IMAGE_CLASSIFICATION: (IOSignature(prompt=_PIXELS, output={"logits": "float32 (classes)"}),),
        Task.SEMANTIC_SEGMENTATION: (
            IOSignature(prompt=_PIXELS, output={"probability": "float32 (classes, H, W)"}),
            _CLASSES,
        ),
        Task.INSTANCE_SEGMENTATION: (
            IOSignature(
                prompt={
                    **_PIXELS,
                    "size": "list",
                    **dict.fromkeys(("threshold", "mask_threshold", "overlap_threshold"), "number"),
                },
                optional=_SHOWN,
                output={
                    "segments": "uint8 (H, W) or uint16 (H, W)",
                    "classes": "int64 (segments)",
                    "scores": "float32 (segments)",
                },
            ),
        ),
        Task.OBJECT_DETECTION: (
            IOSignature(
                prompt=_PIXELS,
                optional=_SHOWN,
                output={"logits": "float32 (queries, classes)", "boxes": "float32 (queries, 4)"},
            ),
        ),
        Task.DEPTH_ESTIMATION: (IOSignature(prompt=_PIXELS, optional=_SHOWN, output={"depth": "float32 (h, w)"}),),
        Task.ZERO_SHOT_CLASSIFICATION: (
            IOSignature(prompt=_TOKENS, output={**_EMBEDDING, "scale": "number", "bias": "number"}),
            IOSignature(prompt=_PIXELS, output=_EMBEDDING),
        ),
        Task.ZERO_SHOT_OBJECT_DETECTION: (
            IOSignature(
                prompt=_INPUTS, output={"logits": "float32 (queries, words)", "pred_boxes": "float32 (queries, 4)"}
            ),
        ),
        Task.MASK_GENERATION: (
            IOSignature(
                prompt=_INPUTS,
                output={"pred_masks": "float32 (objects, masks, h, w)", "iou_scores": "float32 (objects, masks)"},
            ),
        ),
        Task.IMAGE_EMBEDDING: (IOSignature(prompt=_PIXELS, output=_EMBEDDING),),
        Task.IMAGE_TEXT_TO_TEXT: (
            IOSignature(prompt={**_TOKENS, **_SAMPLING}, optional={**_SAMPLED, "inputs.*": "array"}, output=_TEXT),
        ),
        Task.TEXT_CLASSIFICATION: (
            IOSignature(
                prompt=_TOKENS,
                optional={"token_type_ids": "int64 (tokens)"},
                output={"logits": "float32 (classes)"},
            ),
        ),
        Task.TEXT_EMBEDDING: (IOSignature(prompt=_TOKENS, optional={"prompt_tokens": "number"}, output=_EMBEDDING),),
        Task.TEXT_GENERATION: (
            IOSignature(prompt={**_TOKENS, **_SAMPLING}, optional=_SAMPLED, output=_TEXT),
            IOSignature(
                prompt={"inputs_embeds": "float32 (tokens, width)", **_SAMPLING}, optional=_SAMPLED, output=_TEXT
            ),
        ),
        Task.TEXT_IMAGE_EMBEDDING: (
            IOSignature(prompt={"kind": "text"}, optional={"inputs.*": "array"}, output=_EMBEDDING),
        ),
        Task.SPEECH_RECOGNITION: (
            IOSignature(
                prompt={"features": "float32 (bands, frames)", "frames": "number"},
                optional={
                    "task": "text",
                    "language": "text",
                    **dict.fromkeys(("words", "temperature", "seed"), "number"),
                },
                output={"segments": "list", "language": "text"},
            ),
        ),
        Task.AUDIO_CLASSIFICATION: (
            IOSignature(
                prompt={"sound": "float32 (samples) or float32 (frames, bands)"},
                output={"logits": "float32 (classes)"},
            ),
        ),
    }
)

#: Tasks of pictures, each with the plain values that a batch has in common.
_HOSTED: Mapping[Task, tuple[str, ...]] = MappingProxyType(
    {
        Task.IMAGE_CLASSIFICATION: (),
        Task.SEMANTIC_SEGMENTATION: ("size",),
        Task.INSTANCE_SEGMENTATION: (),
        Task.OBJECT_DETECTION: (),
        Task.DEPTH_ESTIMATION: (),
        Task.ZERO_SHOT_CLASSIFICATION: (),
        Task.ZERO_SHOT_OBJECT_DETECTION: ("outputs",),
        Task.MASK_GENERATION: ("outputs",),
        Task.IMAGE_EMBEDDING: (),
    }
)

OFFERS: Offers = MappingProxyType({str(task): signatures for task, signatures in BY_TASK.items()})


def offers_of(model: Model) -> Offers | None:
    """Return the signatures of the model's task; None where the library must tell the task by `config.json`."""
    try:
        task = Task(str(wanted(model.processor, model.options.get("task"))))
    except (ModelUnavailable, ValueError):  # `check` and `load` report it
        return None
    if task is Task.SEMANTIC_SEGMENTATION and model.options.get("answer") == "classes":
        return {str(task): (_CLASSES,)}
    if task is Task.IMAGE_EMBEDDING and model.options.get("pooling") == "patches":
        return {str(task): (IOSignature(prompt=_PIXELS, output={"embedding": "float32 (dimensions, H, W)"}),)}
    return {str(task): BY_TASK[task]}


def hosting_of(model: Model) -> Hosting | None:
    """Return how a model of pictures runs in a process of its own; None for other tasks."""
    try:
        shared = _HOSTED.get(Task(str(wanted(model.processor, model.options.get("task")))))
    except (ModelUnavailable, ValueError):  # `check` and `load` report it
        return None
    return None if shared is None else Hosting(shared)
