"""Zero-shot object detection on scenes: the objects that words name, put together over the borders of tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.base import Dummy, Media, Prepared, Prompt
from penstock.processors.geo.detection import Find, ObjectRunner, SceneDetector
from penstock.processors.geo.mapping import MappingContext
from penstock.processors.geo.options import WordDetectionOptions, read_options
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.numbers import as_floats
from penstock.processors.open_vocabulary.detection import IDS, WordDetector, ZeroShotObjectDetection, read_word_detector
from penstock.processors.open_vocabulary.request import SceneWordsRequest
from penstock.processors.prompt_names import PIXELS
from penstock.processors.vision.detectors import Found
from penstock.processors.vision.image import ImageArray

_COLOURS = 3


class _Runner(ObjectRunner):
    """Tiles of scenes, shown to the library's processor as images."""

    def __init__(self, model: Model, options: WordDetectionOptions, detector: WordDetector) -> None:
        super().__init__(model, options)
        self._detector, self._mean_std = detector, _colours(model, detector.processor.image_processor)

    def _prompts(self, context: MappingContext[SceneWordsRequest]) -> Iterator[Prompt]:
        for tile in super()._prompts(context):
            image = as_image(as_floats(tile).data[PIXELS], *self._mean_std)
            yield replace(self._detector.prompt(image, context.request.labels), cost=tile.cost)


class RasterZeroShotDetection(SceneDetector[SceneWordsRequest]):
    """Detection of the objects in scenes that a request names."""

    request = SceneWordsRequest
    io_signatures = ZeroShotObjectDetection.io_signatures

    def __init__(self, model: Model) -> None:
        options = read_options(model, WordDetectionOptions)
        self._detector = read_word_detector(model)
        super().__init__(model, options, _Runner(model, options, self._detector))

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise with one word."""
        made = super().dummy(limits, folder)
        return replace(made, request={**made.request, "labels": ["a"]})

    def _names(self, request: SceneWordsRequest) -> Mapping[int, str]:
        return dict(enumerate([*request.labels, ""]))

    def _facts(self, request: SceneWordsRequest) -> Mapping[str, Any]:
        return request.model_dump(mode="json", include={"labels", "threshold", "text_threshold"})

    def _prepared(
        self, request: SceneWordsRequest, media: Media, part: range | None = None
    ) -> Prepared[MappingContext[SceneWordsRequest]]:
        self._ids(request)  # words that are too long are refused before the scene is read
        return super()._prepared(request, media, part)

    def _finder(self, request: SceneWordsRequest) -> Find:
        return partial(self._found, request, self._ids(request))

    def _ids(self, request: SceneWordsRequest) -> Any:
        """Return the tokens of the words, the same for each tile; raise `InvalidInput` for words that are too long."""
        blank = np.zeros((64, 64, _COLOURS), np.uint8)
        return self._detector.prompt(blank, request.labels).data[IDS]

    def _found(self, request: SceneWordsRequest, ids: Any, data: Mapping[str, Any], window: Box) -> Found:
        entries = self._detector.found(
            data, ids, (window.height, window.width), request.labels,
            threshold=request.threshold, text_threshold=request.text_threshold,
        )  # fmt: skip
        labels = [
            nearest(one["label"], request.labels) if one["label_id"] is None else one["label_id"] for one in entries
        ]
        boxes = [list(one["box"].values()) for one in entries]
        scores = np.array([one["score"] for one in entries], np.float64)
        return np.array(labels, np.int64), scores, np.array(boxes, np.float64).reshape(-1, 4)


def as_image(pixels: npt.NDArray[np.float32], mean: Sequence[float], std: Sequence[float]) -> ImageArray:
    """Return the uint8 image (rows, columns, 3) that the library normalises to these pixels (3, rows, columns).

    `mean` and `std` are those of the library's processor, of colours from 0 to 1. Pixels beyond these are clipped.
    """
    colours = pixels.transpose(1, 2, 0).astype(np.float64) * std + mean
    return np.rint(np.clip(colours, 0, 1) * 255).astype(np.uint8)


def nearest(phrase: str, labels: Sequence[str]) -> int:
    """Return the place of the label that shares most of its words with a phrase: the first of equals.

    The number of labels if none shares a word with it.
    """
    words = set(phrase.lower().split())
    shares = [len(words & own) / len(words | own) for own in (set(label.lower().split()) for label in labels)]
    return shares.index(max(shares)) if max(shares) > 0 else len(labels)


def _colours(model: Model, processor: Any) -> tuple[Sequence[float], Sequence[float]]:
    """Return the means and deviations of the colours; raise `ModelUnavailable` for a processor without these."""
    found = processor.image_mean, processor.image_std
    if not (processor.do_rescale and processor.do_normalize) or any(np.shape(one) != (_COLOURS,) for one in found):
        raise ModelUnavailable(
            f"model {model.name!r}: its preprocessor does not normalise three colours, so that the means and "
            "deviations of `options.bands` have no meaning for it"
        )
    return found
