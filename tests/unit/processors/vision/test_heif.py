"""HEIC and AVIF photographs: their pixels where a decoder is installed, and a clear error where none is."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.vision.heif import format_of
from penstock.processors.vision.image import measure, read_image
from tests.unit.processors.vision.test_image import gradient

needs_avif = pytest.mark.skipif(not features.check("avif"), reason="needs Pillow 11.3 or newer, with AVIF")


def written(form: str, **options: Any) -> bytes:
    """Return the gradient as a file of this format."""
    if form == "HEIF":
        pytest.importorskip("pillow_heif", reason="needs pillow-heif").register_heif_opener()
    file = io.BytesIO()
    Image.fromarray(gradient(48, 64)).save(file, format=form, **options)
    return file.getvalue()


def head(major: bytes, *compatible: bytes) -> bytes:
    """Return an `ftyp` box (ISO/IEC 14496-12, section 4.3) and the next box's beginning."""
    brands = b"".join(compatible)
    return (16 + len(brands)).to_bytes(4) + b"ftyp" + major + bytes(4) + brands + b"\0\0\0\x20avif"


FORMS = [pytest.param("AVIF", marks=needs_avif), "HEIF"]


@pytest.mark.parametrize("form", FORMS)
def test_the_pixels_are_nearly_those_that_were_written(form: str) -> None:
    data = written(form, quality=95)
    assert measure(data, Limits()) == (48, 64)
    read = read_image(data, Limits())
    assert (read.shape, read.dtype) == ((48, 64, 3), np.uint8)
    assert np.abs(read.astype(int) - gradient(48, 64)).mean() < 8


@pytest.mark.parametrize("form", FORMS)
def test_a_photograph_stands_as_its_camera_was_held(form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held upright: the rows are columns
    read = read_image(written(form, quality=95, exif=exif.tobytes()), Limits())
    assert np.abs(read.astype(int) - np.rot90(gradient(48, 64), -1)).mean() < 8


@pytest.mark.parametrize("form", FORMS)
def test_the_declared_size_is_checked_before_pixels_are_decoded(form: str) -> None:
    for look in (measure, read_image):
        with pytest.raises(MediaTooLarge, match="64 x 48 = 3072 pixels"):
            look(written(form), Limits(max_pixels=3071))


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files_are_refused(form: str) -> None:
    data = written(form)
    for damaged in (data[:40], data[: len(data) // 2], data[:-20], data[:200] + bytes(len(data) - 200)):
        with pytest.raises(MediaUnreadable):
            read_image(damaged, Limits())


@pytest.mark.parametrize(("module", "start", "package"), [
    ("PIL.AvifImagePlugin", head(b"avif", b"mif1"), "pillow>=11.3"),
    ("pillow_heif", head(b"mif1", b"heic"), "pillow-heif"),
])  # fmt: skip
def test_without_a_decoder_the_error_names_the_package(
    monkeypatch: pytest.MonkeyPatch, module: str, start: bytes, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # the import fails
    if module.startswith("PIL."):
        monkeypatch.delattr("PIL.AvifImagePlugin", raising=False)
    with pytest.raises(MediaUnreadable, match="no decoder for it") as caught:
        read_image(start, Limits())
    assert f"pip install '{package}'" in caught.value.detail
    assert "JPEG or PNG" in caught.value.detail


def test_the_brands_tell_the_formats() -> None:
    assert format_of(head(b"avif", b"mif1", b"miaf")) == "AVIF"
    assert format_of(head(b"mif1", b"avif", b"miaf")) == "AVIF"
    assert format_of(head(b"heic", b"mif1", b"heic")) == "HEIC"
    assert format_of(head(b"mif1", b"heic")) == "HEIC"
    # Films, other contents of HEIF, and a brand behind the box.
    assert [format_of(start) for start in (head(b"isom", b"mp41"), head(b"mif1", b"jpeg"), b"", b"ftyp")] == [None] * 4
