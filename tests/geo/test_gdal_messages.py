"""GDAL prints nothing: its errors are raised, and its warnings are not for users."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from penstock.errors import MediaUnreadable
from tests.support.geo.scenes import pattern, segment, write_scene

EVERYTHING = (
    "classes", "probability", "probability_float32", "confidence", "polygons", "preview", "quicklook", "stats", "item",
)  # fmt: skip


def test_a_file_that_libtiff_warns_of_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    data = bytearray(path.read_bytes())
    (directory,) = struct.unpack("<I", data[4:8])
    first, second = (slice(at, at + 12) for at in (directory + 2 + 12 * 2, directory + 2 + 12 * 3))
    data[first], data[second] = data[second], data[first]  # tags must be in order
    path.write_bytes(data)
    segment(path, tmp_path / "out", outputs=EVERYTHING)
    assert capfd.readouterr().err == ""


def test_a_truncated_file_is_an_error_and_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_scene(tmp_path / "s.tif", pattern(30, 40))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(MediaUnreadable, match="damaged or incomplete"):
        segment(path, tmp_path / "out", outputs=EVERYTHING)
    assert capfd.readouterr().err == ""
