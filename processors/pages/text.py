"""OCR: reads the text of pages, line by line with positions and scores, and annotates copies of the pages.

This processor only decodes the files. The runner (`workers.engine.onnx.ocr`) finds, rotates and reads the lines,
because in RapidOCR the input of each of these networks depends on the output of the previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result, final_outputs
from penstock.processors.io_signature import IOSignature
from penstock.processors.outputs import OUTPUTS
from penstock.processors.pages.annotation import Annotation
from penstock.processors.pages.pages import ANNOTATED, PagesContext, open_pages, write_dummy
from penstock.processors.pages.request import TextRequest

_COLOUR = (200, 30, 30)


class OpticalCharacterRecognition:
    """The optical character recognition processor."""

    request = TextRequest
    outputs = (
        OUTPUTS.spec("text", "the result: the text of all pages, line by line"),
        OUTPUTS.spec("lines", "the result: the lines of each page with position and score", kind="json"),
        ANNOTATED,
    )
    io_signatures = (
        IOSignature(
            prompt={"image": "uint8 (H, W, 3)"},
            output={"boxes": "array (lines, 4, 2)", "scores": "array (lines)", "texts": "list"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._limits = model.limits

    def pre_process(self, request: TextRequest, media: Media) -> Prepared[PagesContext]:
        """Return one prompt per page."""
        context, cost = open_pages(request, media, self._limits)
        prompts = (Prompt({"image": page}, cost=page.shape[0] * page.shape[1]) for page in context.read())
        return Prepared(prompts, len(context.sources), cost, context, unit="pages")

    def post_process(self, outputs: Iterator[Output], context: PagesContext, sink: ArtifactSink) -> Result:
        """Return the text, and `{"pages": [{"width", "height", "text", "lines": [...]}]}` in the order of the pages.

        A line is `{"text", "score", "box"}`. Its box has four corners, [x, y] in pixels, clockwise from the start of
        the text. An empty line separates the texts of two pages.
        """
        pages, texts = [], []
        for number, output in enumerate(final_outputs(outputs)):
            lines = [line for line in _lines(output) if line["score"] >= context.request.min_score]
            context.annotate(number, [_annotation(i, line) for i, line in enumerate(lines, start=1)], sink)
            text = "\n".join(line["text"] for line in lines)
            height, width = context.shapes[number]
            pages.append({"width": width, "height": height, "text": text, "lines": lines})
            texts.append(f"\n\n{text}" if number else text)
            sink.say(texts[-1])
        return Result(text="".join(texts), data={"pages": pages})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a page with a few lines."""
        return Dummy({"images": ["media://dummy"]}, {"media://dummy": write_dummy(folder, limits)})


def _lines(output: Output) -> list[Mapping[str, Any]]:
    boxes, scores, texts = (output.data.get(name) for name in ("boxes", "scores", "texts"))
    boxes, scores = np.asarray(boxes), np.asarray(scores)
    if not isinstance(texts, list) or boxes.shape != (len(texts), 4, 2) or scores.shape != (len(texts),):
        raise ProcessorFailed("The model's answer has no lines of text: its runner must be `rapidocr`")
    return [
        {"text": text, "score": round(float(score), 5), "box": np.round(box.astype(float), 1).tolist()}
        for text, score, box in zip(texts, scores, boxes, strict=True)
    ]


def _annotation(number: int, line: Mapping[str, Any]) -> Annotation:
    return Annotation([(x, y) for x, y in line["box"]], str(number), _COLOUR)
