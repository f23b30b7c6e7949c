"""The OCR processor: pages in, the text of each, its lines with their places and scores, and annotated copies out.

Only files are decoded here. Finding lines, setting them upright and reading them is one thing in RapidOCR, where what
a network sees depends on what the one before found, and so it is the runner's (`workers.engine.onnx.ocr`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.outputs import OUTPUTS
from penstock.processors.pages.drawing import Mark
from penstock.processors.pages.pages import ANNOTATED, Context, open_pages, write_dummy
from penstock.processors.pages.request import TextRequest

_COLOUR = (200, 30, 30)


class OpticalCharacterRecognition:
    """Reads printed text."""

    request = TextRequest
    outputs = (
        OUTPUTS.spec("text", "the result: the text of all pages, a line for each line found"),
        OUTPUTS.spec("lines", "the result: each line of each page with its place and score", kind="json"),
        ANNOTATED,
    )

    def __init__(self, model: Model) -> None:
        self._limits = model.limits

    def pre_process(self, request: TextRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per page."""
        context, cost = open_pages(request, media, self._limits)
        prompts = (Prompt({"picture": page}, cost=page.shape[0] * page.shape[1]) for page in context.read())
        return Prepared(prompts, len(context.paths), cost, context, unit="pages")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return the text, and `{"pages": [{"width", "height", "text", "lines": [...]}]}` in the pages' order.

        A line is `{"text", "score", "box"}`, its box four corners, [x, y] in pixels, clockwise from where it begins.
        Between the texts of two pages there is an empty line.
        """
        pages, said = [], []
        for number, output in enumerate(final_outputs(outputs)):
            lines = [line for line in _lines(output) if line["score"] >= context.request.min_score]
            context.annotate(number, [_mark(i, line) for i, line in enumerate(lines, start=1)], sink)
            text = "\n".join(line["text"] for line in lines)
            height, width = context.shapes[number]
            pages.append({"width": width, "height": height, "text": text, "lines": lines})
            said.append(f"\n\n{text}" if number else text)
            sink.say(said[-1])
        return Result(text="".join(said), data={"pages": pages})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a page with a few lines."""
        return Dummy({"images": ["media://dummy"]}, {"media://dummy": write_dummy(folder, limits)})


def _lines(output: Output) -> list[Mapping[str, Any]]:
    boxes, scores, texts = (output.data.get(name) for name in ("boxes", "scores", "texts"))
    boxes, scores = np.asarray(boxes), np.asarray(scores)
    if not isinstance(texts, list) or boxes.shape != (len(texts), 4, 2) or scores.shape != (len(texts),):
        raise ProcessorFailed("The model answered with something else than lines: is its runner `rapidocr`?")
    return [
        {"text": text, "score": round(float(score), 5), "box": np.round(box.astype(float), 1).tolist()}
        for text, score, box in zip(texts, scores, boxes, strict=True)
    ]


def _mark(number: int, line: Mapping[str, Any]) -> Mark:
    return Mark([(x, y) for x, y in line["box"]], str(number), _COLOUR)
