"""JPEG files with too many scans or too little data are refused before they are decoded."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.vision.image import measure, read_image
from penstock.processors.vision.scans import MAX_SCANS


def jpeg(side: int = 64, **options: Any) -> bytes:
    pixels = np.random.default_rng(1).integers(0, 255, (side, side, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


def with_scans(count: int) -> bytes:
    """Return a progressive JPEG whose last scan is there many times."""
    data = jpeg(progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


def claiming(side: int, **options: Any) -> bytes:
    """Return a JPEG of 16 x 16 pixels whose header declares more."""
    data = jpeg(16, **options)
    at = next(found.end() for found in re.finditer(rb"\xff[\xc0\xc2]", data)) + 3
    return data[:at] + side.to_bytes(2) * 2 + data[at + 4 :]


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def write(data: bytes) -> Path:
        (tmp_path / "image").write_bytes(data)
        return tmp_path / "image"

    return write


def test_scans_beyond_the_limit_are_refused_at_once(file: Callable[[bytes], Path]) -> None:
    path = file(with_scans(60_000))
    begun = time.process_time()
    with pytest.raises(MediaTooLarge, match=f"more than {MAX_SCANS} scans"):
        read_image(path, Limits())
    with pytest.raises(MediaTooLarge):
        measure(path, Limits())
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("options", [{}, {"progressive": True}], ids=["sequential", "progressive"])
def test_an_image_that_holds_a_part_of_what_it_declares_is_refused(
    file: Callable[[bytes], Path], options: dict[str, Any]
) -> None:
    with pytest.raises(MediaUnreadable, match="damaged or incomplete"):
        read_image(file(claiming(4400, **options)), Limits())


@pytest.mark.parametrize("form", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", [0, 2])
@pytest.mark.parametrize("progressive", [True, False])
def test_an_image_of_one_colour_is_read(
    file: Callable[[bytes], Path], form: str, subsampling: int, progressive: bool
) -> None:
    """It has the fewest bits that an encoder writes."""
    written = io.BytesIO()
    options = {"quality": 1, "optimize": True, "subsampling": subsampling, "progressive": progressive}
    Image.new(form, (801, 603)).save(written, "JPEG", **options)
    assert read_image(file(written.getvalue()), Limits()).shape == (603, 801, 3)


def test_an_ordinary_image_with_a_thumbnail_restarts_and_a_tail_is_read(file: Callable[[bytes], Path]) -> None:
    exif = Image.Exif()
    exif[0x010E] = (b"\xff\xda" * 500).decode("latin-1")
    data = jpeg(progressive=True, exif=exif, restart_marker_blocks=2) + b"\xff\xda" * 500
    assert read_image(file(data), Limits()).shape == (64, 64, 3)
