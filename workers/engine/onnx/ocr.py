"""The runner `rapidocr`: text in a picture, by the three networks of the library RapidOCR and with its own arithmetic.

A detector finds lines, a classifier turns those that stand on their heads, a recogniser reads them: what the second
sees depends on what the first found, so that all three belong to one model. A page takes one step for its lines and
then one for each batch of them, so that a page full of text never holds up the prompts of other jobs.

Prompts have `picture`, uint8 RGB (height, width, 3); outputs have `boxes`, float32 (lines, 4, 2) as x and y in pixels,
clockwise from the top left as one reads, `scores`, float32 (lines,), and `texts`, from top to bottom.
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
from penstock.workers.engine.onnx.description import Description
from penstock.workers.engine.onnx.graph import check_graph, find_file
from penstock.workers.engine.onnx.session import onnx_errors, open_session
from penstock.workers.engine.weights import locate

Array = npt.NDArray[Any]

INPUT_NAME = "picture"
#: What the library calls its networks, and how their files are told apart.
_PARTS = {"Det": "det", "Cls": "cls", "Rec": "rec"}


@dataclass(frozen=True, slots=True)
class Page:
    """A picture before its lines are found: uint8 BGR, as the library wants it."""

    picture: Array
    #: What the library did to make it fit.
    changes: dict[str, Any]
    #: Its (height, width) before.
    shape: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lines:
    """The lines of a page: those that were read, and those that were not yet."""

    #: float32 (lines, 4, 2) in pixels of the page.
    boxes: Array
    #: The lines cut out and set upright; None once they are read.
    crops: Sequence[Array | None]
    #: In which order they are read: the narrowest first, because a batch is as wide as its widest.
    order: Sequence[int]
    #: By line.
    read: Mapping[int, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class OcrRunner:
    """RapidOCR with sessions of ours."""

    library: Any
    memory_bytes: int
    #: One: pages differ in size, and the lines of one fill batches.
    max_batch: int = 1

    def bucket(self, prompt: Prompt) -> Hashable:
        """Pages of one shape are alike."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Page:
        """Return the picture as the library wants it; raise `InvalidInput` if nothing would be left of it."""
        picture = prompt.data.get(INPUT_NAME)
        if (
            not isinstance(picture, np.ndarray)
            or picture.dtype != np.uint8
            or picture.ndim != 3
            or picture.shape[2] != 3
        ):
            raise ProcessorFailed(f"the model takes `{INPUT_NAME}`, a uint8 array (height, width, 3)")
        height, width = picture.shape[:2]
        try:
            resized, changes = self.library.preprocess_img(np.ascontiguousarray(picture[:, :, ::-1]))
        except ResizeImgError as error:
            detail = f"The picture is too small or too narrow for this model: {width} x {height} pixels."
            raise InvalidInput(detail) from error
        return Page(resized, changes, (height, width))

    def step(self, states: Sequence[Page | Lines]) -> Sequence[Step]:
        """Find a page's lines, or read some more of them."""
        with onnx_errors():
            return [self._found(state) if isinstance(state, Page) else self._further(state) for state in states]

    def close(self) -> None:
        """There is nothing to free but the sessions, which go with the runner."""

    def _found(self, page: Page) -> Step:
        try:
            crops, found = self.library.detect_and_crop(page.picture, page.changes)
        except RapidOCRError:  # its word for a page without any text
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
    # Scores are for the processor to judge; a logger of the library's own would colour the worker's log.
    library: Any = RapidOCR(params={"Global.text_score": 0.0, "Global.log_level": "critical"})
    with flag_override(library.cfg, "allow_objects", True):
        for part, session in sessions.items():
            library.cfg[part].session = session
    # It makes its parts when they are first needed.
    for load in (library._load_det_model, library._load_cls_model, library._load_rec_model):
        load()
    return OcrRunner(library, size_bytes)


def check_ocr(model: Model) -> None:
    """Look at what `load_ocr` would load, without making sessions of it; raise `ModelUnavailable`."""
    for path in _files(model).values():
        check_graph(model, path)


def _files(model: Model) -> dict[str, Path]:
    """Return the files of the three networks by what the library calls them."""
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
    threads = model.options.get("threads", Description().threads)
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 0:
        raise ModelUnavailable(f"model {model.name!r}: options.threads is not a number of threads: {threads!r}")
    return threads


def _output(boxes: Array, read: Sequence[tuple[str, float]]) -> Output:
    scores = np.array([score for _, score in read], np.float32)
    return Output({"boxes": boxes, "scores": scores, "texts": [text for text, _ in read]})
