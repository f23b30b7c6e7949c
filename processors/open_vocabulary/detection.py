"""Zero-shot object detection: finds what words name, by the library's own processor."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from penstock.errors import InvalidInput, Issue, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, only_output
from penstock.processors.directory import check_options, read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.multimodal.encoder import INPUTS_NAME, OUTPUTS_NAME
from penstock.processors.multimodal.library import as_array, as_tensors, load_processor, rejecting, trying
from penstock.processors.open_vocabulary.request import WordDetectionRequest
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.annotation import annotate
from penstock.processors.vision.image import ImageArray, read_image
from penstock.processors.vision.prompts import write_dummy
from penstock.views import View

_DECODE = "post_process_grounded_object_detection"
#: Name of the tokens of the words in a prompt.
IDS = INPUTS_NAME.format("input_ids")
_ANSWER = {"logits": "array (queries, words)", "pred_boxes": "array (queries, 4)"}


@dataclass(frozen=True, slots=True)
class WordDetector:
    """A detector for images of any origin, such as a photograph or a tile of a scene."""

    processor: Any
    #: Maximum number of tokens in a text of the network.
    max_tokens: int

    def prompt(self, image: ImageArray, labels: Sequence[str]) -> Prompt:
        """Return the prompt of an image; raise `InvalidInput` for labels that the network cannot take."""
        for number, label in enumerate(labels):
            self._check(len(self.processor.tokenizer(label)["input_ids"]), f"label {number} has", f"/{number}")
        with rejecting("labels"):
            made = self.processor(images=Image.fromarray(image), text=[list(labels)], return_tensors="pt")
        arrays = {INPUTS_NAME.format(name): as_array(value) for name, value in made.items()}
        self._check(arrays[IDS].shape[1], "the labels have")
        height, width = made["pixel_values"].shape[-2:]
        return Prompt({**arrays, OUTPUTS_NAME: list(_ANSWER)}, cost=height * width)

    def found(
        self, output: Mapping[str, Any], prompt_ids: Any, size: tuple[int, int], labels: Sequence[str], **wanted: Any
    ) -> list[Mapping[str, Any]]:
        """Return the objects of an output as the library decodes it, best first: label_id, label, score and box.

        `prompt_ids` are the prompt's `input_ids`, `size` is the image's (height, width), and `wanted` holds settings of
        the library's decoder, where None is its default. `label_id` is the place in `labels`, or None where the label
        has the words of several or of a part.
        """
        arrays = {name: np.asarray(value)[None] for name, value in output.items()}
        # Words that a text lacks have the score -inf.
        if np.isnan(arrays["logits"]).any() or not np.isfinite(arrays["pred_boxes"]).all():
            raise ProcessorFailed("The network answered NaN or infinite numbers.")
        decode = getattr(self.processor, _DECODE)
        ids = as_tensors(ids=prompt_ids)["ids"]
        offered = {"input_ids": ids, "target_sizes": [size], "text_labels": [list(labels)], **wanted}
        known = inspect.signature(decode).parameters
        given = {name: value for name, value in offered.items() if name in known and value is not None}
        [result] = decode(as_tensors(**arrays), **given)
        places = {label.strip().lower(): number for number, label in reversed(list(enumerate(labels)))}
        scores = result["scores"].tolist()
        # Grounding DINO decodes no labels to one empty label.
        one_by_one = zip(result["text_labels"][: len(scores)], scores, result["boxes"].tolist(), strict=True)
        entries = [_entry(label, places, score, box) for label, score, box in one_by_one]
        return sorted(entries, key=lambda entry: -entry["score"])

    def _check(self, tokens: int, what: str, place: str = "") -> None:
        if tokens > self.max_tokens:
            detail = f"{what} {tokens} tokens; this model accepts at most {self.max_tokens}"
            raise InvalidInput(detail, errors=[Issue(f"/input/labels{place}", detail)])


def read_word_detector(model: Model) -> WordDetector:
    """Return the model's detector; raise `ModelUnavailable` if its processor does not take words with an image."""
    processor = load_processor(model)
    if not hasattr(processor, _DECODE):
        raise ModelUnavailable(f"model {model.name!r}: {type(processor).__name__} finds no objects by words")
    config = read_config(model)
    text = config.get("text_config") or {}
    bounds = processor.tokenizer.model_max_length, config.get("max_text_len"), text.get("max_position_embeddings")
    detector = WordDetector(processor, min(bound for bound in bounds if isinstance(bound, int)))
    with trying(model, processor):
        detector.prompt(np.zeros((64, 64, 3), np.uint8), ["a"])
    return detector


@dataclass(frozen=True, slots=True)
class ZeroShotObjectDetectionContext:
    """Request state for `post_process`."""

    request: WordDetectionRequest
    ids: Any
    size: tuple[int, int]
    #: The pixels, only if an annotated copy is wanted.
    image: ImageArray | None


class ZeroShotObjectDetection:
    """The zero-shot object detection processor."""

    request = WordDetectionRequest
    outputs = (
        OUTPUTS.spec("boxes", "boxes.json: the result: labels, scores and boxes in pixels", kind="json"),
        OUTPUTS.spec("annotated", "annotated.png: the image with its boxes", kind="png"),
    )
    views = (View("boxes", "/objects"),)
    io_signatures = (
        IOSignature(
            prompt={INPUTS_NAME.format("*"): "array", OUTPUTS_NAME: "list"},
            output=_ANSWER,
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._detector = read_word_detector(model)

    def pre_process(self, request: WordDetectionRequest, media: Media) -> Prepared[ZeroShotObjectDetectionContext]:
        """Return one prompt."""
        image = read_image(media.source(request.image), self._model.limits)
        prompt = self._detector.prompt(image, request.labels)
        kept = image if "annotated" in request.outputs else None
        context = ZeroShotObjectDetectionContext(request, prompt.data[IDS], (image.shape[0], image.shape[1]), kept)
        return Prepared(iter([prompt]), 1, prompt.cost, context, unit="images")

    def post_process(
        self, outputs: Iterator[Output], context: ZeroShotObjectDetectionContext, sink: ArtifactSink
    ) -> Result:
        """Return `{"width", "height", "objects": [{"label_id", "label", "score", "box"}]}`, best first.

        A box is `{"xmin", "ymin", "xmax", "ymax"}` in pixels from the upper left, after the image's EXIF rotation. It
        may extend beyond the image.
        """
        wanted = context.request
        objects = self._detector.found(
            only_output(outputs).data, context.ids, context.size, wanted.labels,
            threshold=wanted.threshold, text_threshold=wanted.text_threshold,
        )  # fmt: skip
        height, width = context.size
        data = {"width": width, "height": height, "objects": objects}
        if "boxes" in wanted.outputs:
            OUTPUTS.put(sink, "boxes", data, kind="json")
        if context.image is not None:
            OUTPUTS.put(sink, "annotated", annotate(context.image, objects), kind="png")
        return Result(data=data)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return one image of ordinary size."""
        return Dummy({"image": "media://dummy", "labels": ["a"]}, {"media://dummy": write_dummy(folder, limits)})


def _entry(label: str, places: Mapping[str, int], score: float, box: Sequence[float]) -> Mapping[str, Any]:
    sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    return {
        "label_id": places.get(label.strip().lower()),
        "label": label,
        "score": round(score, 6),
        "box": {name: round(side, 2) for name, side in sides},
    }
