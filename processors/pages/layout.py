"""Layout detection: finds titles, text, figures and tables on pages, and annotates copies of the pages.

It supports the networks of RapidLayout's PP family. Preprocessing and postprocessing are the library's own; the runner
`onnx` computes the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError
from rapid_layout.model_handler.pp.post_process import PPPostProcess
from rapid_layout.model_handler.pp.pre_process import PPPreProcess

from penstock.errors import ConfigError, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.directory import read_labels
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.pages.annotation import Annotation
from penstock.processors.pages.pages import ANNOTATED, PagesContext, open_pages, write_dummy
from penstock.processors.pages.request import LayoutRequest
from penstock.processors.vision.colours import colour
from penstock.views import View

#: The network's input: float32 (3, height, width).
INPUT_NAME = "image"
#: Height and width of the networks' input.
_SIZE_PX = (800, 608)
#: Maximum overlap (intersection over union) of two boxes of one label; the box with the lower score is dropped.
_MAX_OVERLAP = 0.5


class LayoutDetection:
    """The layout detection processor."""

    request = LayoutRequest
    outputs = (
        OUTPUTS.spec("boxes", "the result: the boxes of each page with label and score", kind="json"),
        ANNOTATED,
    )
    views = (View("boxes", "/pages/*/boxes", "page"),)
    io_signatures = (
        IOSignature(
            prompt={INPUT_NAME: "float32 (3, 800, 608)"},
            output={"*": "array (anchors, numbers)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._limits = model.limits
        self._labels = _labels(model)
        self._preprocess = PPPreProcess(img_size=_SIZE_PX)

    def pre_process(self, request: LayoutRequest, media: Media) -> Prepared[PagesContext]:
        """Return one prompt per page."""
        context, _ = open_pages(request, media, self._limits)
        cost = _SIZE_PX[0] * _SIZE_PX[1]
        # The library expects BGR.
        prompts = (Prompt({INPUT_NAME: self._preprocess(page[:, :, ::-1])[0]}, cost) for page in context.read())
        return Prepared(prompts, len(context.sources), cost * len(context.sources), context, unit="pages")

    def post_process(self, outputs: Iterator[Output], context: PagesContext, sink: ArtifactSink) -> Result:
        """Return `{"pages": [{"width", "height", "boxes": [{"label", "score", "box"}]}]}`, highest score first.

        A box is [left, top, right, bottom] in pixels.
        """
        pages = []
        for number, output in enumerate(final_outputs(outputs)):
            height, width = context.shapes[number]
            boxes = self._boxes(output, (height, width), context.request.min_score)
            context.annotate(number, [self._annotation(box) for box in boxes], sink)
            pages.append({"width": width, "height": height, "boxes": boxes})
        return Result(data={"pages": pages})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a page with a few lines."""
        return Dummy({"images": ["media://dummy"]}, {"media://dummy": write_dummy(folder, limits)})

    def _boxes(self, output: Output, shape: tuple[int, int], min_score: float) -> list[Mapping[str, Any]]:
        finish = PPPostProcess(self._labels, min_score, _MAX_OVERLAP)
        blank = np.empty((1, 3, *_SIZE_PX), np.float32)  # the library reads its shape only
        found = zip(*finish(shape, blank, self._predictions(output)), strict=True)
        boxes = [
            {"label": label, "score": round(score, 5), "box": [round(float(number), 1) for number in box]}
            for box, score, label in found
        ]
        return sorted(boxes, key=lambda box: -box["score"])

    def _predictions(self, output: Output) -> list[npt.NDArray[np.float32]]:
        """Return the network's outputs in the library's order: scores, then boxes, each from large to small."""
        arrays = [np.asarray(array) for array in output.data.values()]
        scores = [array for array in arrays if array.ndim == 2 and array.shape[1] == len(self._labels)]
        boxes = [array for array in arrays if array.ndim == 2 and array.shape[1] != len(self._labels)]
        kinds = [sorted(kind, key=len, reverse=True) for kind in (scores, boxes)]
        if len(scores) != 4 or [len(array) for array in kinds[0]] != [len(array) for array in kinds[1]]:
            raise ProcessorFailed(
                f"The network is not of the PP family or does not have {len(self._labels)} labels: it answered "
                f"{[array.shape for array in arrays]}."
            )
        return [array[None] for kind in kinds for array in kind]

    def _annotation(self, box: Mapping[str, Any]) -> Annotation:
        left, top, right, bottom = box["box"]
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        return Annotation(corners, f"{box['label']} {box['score']:.2f}", colour(self._labels.index(box["label"]) + 1))


def _labels(model: Model) -> Sequence[str]:
    """Return the names of the network's classes: the option `labels`, or the metadata of its file."""
    if own := read_labels(model):
        return [own[number] for number in sorted(own)]
    path = Path(model.source)
    try:
        metadata = onnx.load(path, load_external_data=False).metadata_props
        [names] = [entry.value.splitlines() for entry in metadata if entry.key == "character"]
    except (OSError, DecodeError, ValueError) as error:
        raise ConfigError(
            f"model {model.name!r}: its file does not name its classes: list them in options.labels"
        ) from error
    return list(names)
