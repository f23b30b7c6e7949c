"""The runner `rapidocr`: text in an image, by the three networks of the library RapidOCR and its own arithmetic.

A detector finds lines, a classifier turns upside-down lines, a recogniser reads them. The second network's input is
the first one's output, so all three belong to one model. A page takes one step for its lines and then one step for each
batch of lines, so that a page full of text never delays the prompts of other jobs.

Prompts have `image`, uint8 RGB (height, width, 3). Outputs have `boxes`, float32 (lines, 4, 2) of x and y in pixels,
clockwise from the top left in reading direction, `scores`, float32 (lines,), and `texts`, from top to bottom.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from omegaconf import flag_override
from rapidocr import RapidOCR
from rapidocr.main import RapidOCRError
from rapidocr.utils.process_img import ResizeImgError, map_boxes_to_original

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Done, Runner, Step, shapes_of
from penstock.workers.engine.onnx.description import OnnxDescription
from penstock.workers.engine.onnx.graph import check_graph, find_file
from penstock.workers.engine.onnx.session import onnx_errors, open_session
from penstock.workers.engine.weights import locate

Array = npt.NDArray[Any]

INPUT_NAME = "image"
#: The library's names of its networks, and the words in the names of their files.
_PARTS = {"Det": "det", "Cls": "cls", "Rec": "rec"}


@dataclass(frozen=True, slots=True)
class Page:
    """An image before detection: uint8 BGR, as the library takes it."""

    image: Array
    #: The library's record of how it resized the image.
    changes: dict[str, Any]
    #: The (height, width) before resizing.
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a page, some of them read."""

    #: Float32 (lines, 4, 2) in pixels of the page.
    boxes: Array
    #: Upright crops of the lines; None once a line is read.
    crops: Sequence[Array | None]
    #: Order of reading: the narrowest line first, because a batch is as wide as its widest line.
    order: Sequence[int]
    #: Text and score of the lines that are read, by line.
    read: Mapping[int, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class OcrRunner:
    """RapidOCR with Penstock's sessions of onnxruntime."""

    library: Any
    memory_bytes: int
    #: 1: pages differ in size, and the lines of a page fill batches.
    max_batch: int = 1

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the prompt's shape."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Page:
        """Return the image as the library takes it; raise `InvalidInput` for one that is too small."""
        image = prompt.data.get(INPUT_NAME)
        if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ProcessorFailed(f"the model takes `{INPUT_NAME}`, a uint8 array (height, width, 3)")
        height, width = image.shape[:2]
        try:
            resized, changes = self.library.preprocess_img(np.ascontiguousarray(image[:, :, ::-1]))
        except ResizeImgError as error:
            detail = f"the image is too small or too narrow for this model: {width} x {height} pixels."
            raise InvalidInput(detail) from error
        return Page(resized, changes, (height, width))

    def step(self, states: Sequence[Page | Lines]) -> Sequence[Step]:
        """Find a page's lines, or read the next batch of them."""
        with onnx_errors():
            return [self._found(state) if isinstance(state, Page) else self._further(state) for state in states]

    def close(self) -> None:
        """Free nothing: the sessions are freed with the runner."""

    def _found(self, page: Page) -> Step:
        try:
            crops, found = self.library.detect_and_crop(page.image, page.changes)
        except RapidOCRError:  # raised for a page without any text
            return Done(_output(np.empty((0, 4, 2), np.float32), []))
        boxes = map_boxes_to_original(found.boxes, page.changes, *page.shape).astype(np.float32)
        order = np.argsort([crop.shape[1] / crop.shape[0] for crop in crops]).tolist()
        return Continue(Lines(boxes, crops, order, {}))

    def _further(self, lines: Lines) -> Step:
        batch = self.library.text_rec.rec_batch_num
        now = lines.order[len(lines.read) : len(lines.read) + batch]
        upright, _ = self.library.cls_and_rotate([lines.crops[index] for index in now])
        answer = self.library.recognize_txt(upright)
        found = zip(answer.txts, map(float, answer.scores), strict=True)
        read = {**lines.read, **dict(zip(now, found, strict=True))}
        if len(read) < len(lines.order):
            crops = [None if index in read else crop for index, crop in enumerate(lines.crops)]
            return Continue(replace(lines, crops=crops, read=read))
        kept = [index for index in range(len(lines.crops)) if read[index][0].strip()]
        return Done(_output(lines.boxes[kept], [read[index] for index in kept]))


def load_ocr(model: Model) -> Runner:
    """Load the three networks of a directory; raise `ModelUnavailable`."""
    paths = _files(model)
    size_bytes = sum(check_graph(model, path)[0] for path in paths.values())
    threads = _threads(model)
    sessions = {part: open_session(model, path, threads=threads) for part, path in paths.items()}
    if "character" not in sessions["Rec"].get_modelmeta().custom_metadata_map:
        raise ModelUnavailable(f"model {model.name!r}: {paths['Rec'].name} does not say which characters it knows")
    # The processor filters by score; the library's own logger would write coloured lines into the worker's log.
    library: Any = RapidOCR(params={"Global.text_score": 0.0, "Global.log_level": "critical"})
    with flag_override(library.cfg, "allow_objects", True):
        for part, session in sessions.items():
            library.cfg[part].session = session
    # The library loads its parts on first use.
    for load in (library._load_det_model, library._load_cls_model, library._load_rec_model):
        load()
    return OcrRunner(library, size_bytes)


def check_ocr(model: Model) -> None:
    """Check the files that `load_ocr` would load, without making sessions; raise `ModelUnavailable`."""
    for path in _files(model).values():
        check_graph(model, path)


def _files(model: Model) -> dict[str, Path]:
    """Return the files of the three networks by the library's names."""
    root = locate(model)
    if not root.is_dir():
        raise ModelUnavailable(f"the source of model {model.name!r} is not a directory: {root}")
    found = {}
    for part, word in _PARTS.items():
        names = [path.name for path in sorted(root.glob("*.onnx")) if f"_{word}_" in f"_{path.stem}_"]
        if len(names) != 1:
            there = ", ".join(names) or "none"
            raise ModelUnavailable(
                f"model {model.name!r} needs one ONNX file with `{word}` in its name, and its directory has: {there}"
            )
        found[part] = find_file(model, names[0])
    return found


def _threads(model: Model) -> int:
    threads = model.options.get("threads", OnnxDescription().threads)
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise ModelUnavailable(f"model {model.name!r}: options.threads is not a number of threads: {threads!r}")
    return threads


def _output(boxes: Array, read: Sequence[tuple[str, float]]) -> Output:
    scores = np.array([score for _, score in read], np.float32)
    return Output({"boxes": boxes, "scores": scores, "texts": [text for text, _ in read]})
