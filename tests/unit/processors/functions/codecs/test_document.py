from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.functions.codecs import document
from penstock.processors.testing import FolderSink
from tests.support.pdf import write_pdf


def test_the_pages_of_a_pdf_are_images_and_text(tmp_path: Path) -> None:
    found = document.decode(write_pdf(tmp_path / "a.pdf", ["One page", "Another"]), {"dpi": 36}, Limits())
    first, second = found["pages"]
    assert (first["text"].strip(), second["text"].strip(), found["dpi"]) == ("One page", "Another", 36)
    assert (first["image"].dtype, first["image"].shape) == (np.uint8, (72, 72, 3))
    assert first["image"][60, 10].tolist() == [255, 0, 0]
    assert first["image"][60, 60].tolist() == [255, 255, 255]


def test_an_image_is_a_page(tmp_path: Path) -> None:
    Image.new("RGB", (20, 10), "blue").save(tmp_path / "a.png")
    [page] = document.decode(tmp_path / "a.png", {}, Limits())["pages"]
    assert (page["image"].shape, page["text"]) == ((10, 20, 3), "")


def test_documents_are_bounded(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["x"], side=14_400)
    with pytest.raises(MediaTooLarge, match="Page 1 has 30000 x 30000 pixels at 150 dots per inch"):
        document.decode(path, {}, Limits())
    with pytest.raises(MediaTooLarge, match="at most 100 are allowed"):
        document.decode(write_pdf(tmp_path / "b.pdf", ["x"]), {"dpi": 72}, Limits(max_pixels=100))
    many = write_pdf(tmp_path / "c.pdf", ["x"] * (document.MAX_PAGES + 1))
    with pytest.raises(MediaTooLarge, match="1,001 pages; at most 1,000"):
        document.decode(many, {"dpi": 1}, Limits())
    large = write_pdf(tmp_path / "d.pdf", ["x"] * 9, side=3_000)
    with pytest.raises(MediaTooLarge, match=r"the model takes fewer with `Document\(dpi=...\)`"):
        document.decode(large, {"dpi": 160}, Limits())


def test_a_damaged_pdf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4 and nothing")
    with pytest.raises(MediaUnreadable, match="damaged, or needs a password"):
        document.decode(tmp_path / "a.pdf", {}, Limits())


def test_pages_become_a_pdf_and_their_texts_the_answer(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    pages = [
        {"image": np.full((40, 30, 3), 9, np.uint8), "text": "a"},
        {"image": np.zeros((20, 10), np.uint8), "text": ""},
    ]
    told = document.encode(FolderSink(folder), "", {"pages": pages, "dpi": 72})
    assert told == {
        "pages": [
            {"page": 1, "text": "a", "width": 30, "height": 40}, {"page": 2, "text": "", "width": 10, "height": 20},
        ]
    }  # fmt: skip
    again = document.decode(folder / "document.pdf", {"dpi": 72}, Limits())["pages"]
    assert [page["image"].shape for page in again] == [(40, 30, 3), (20, 10, 3)]
    assert abs(int(again[0]["image"].mean()) - 9) < 3
    texts = [{"image": None, "text": "a"}]
    assert document.encode(FolderSink(folder), "b", {"pages": texts, "dpi": 72}) == {
        "pages": [{"page": 1, "text": "a"}]
    }
