"""Raster files whose metadata would take a multiple of their size in memory are refused before GDAL opens them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import MediaTooLarge
from penstock.models import Limits
from penstock.processors.geo.read.directories import MAX_DIRECTORIES, MAX_METADATA_BYTES, check_metadata
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.read.raster import read_scene


def scene(path: Path, driver: str = "GTiff", **options: object) -> Path:
    profile = {"driver": driver, "width": 16, "height": 16, "count": 1, "dtype": "uint8", **options}
    with without_georeference(), rasterio.open(path, "w", **profile) as file:
        file.write(np.ones((1, 16, 16), np.uint8))
        if driver == "GTiff":
            file.update_tags(NOTE="x")
    return path


def with_text(path: Path, size: int, *, big: bool) -> Path:
    """Declare `size` bytes of GDAL_METADATA and append as many."""
    data = bytearray(scene(path, BIGTIFF="YES" if big else "NO").read_bytes())
    xml = b"<GDALMetadata>" + b"<Item name='a'>b</Item>" * (size // 23) + b"</GDALMetadata>"
    entry = data.index(struct.pack("<HH", 42112, 2))
    data[entry + 4 : entry + (20 if big else 12)] = struct.pack("<QQ" if big else "<II", len(xml), len(data))
    path.write_bytes(bytes(data) + xml)
    return path


@pytest.mark.parametrize("big", [True, False], ids=["BigTIFF", "TIFF"])
def test_metadata_of_many_megabytes_are_refused(tmp_path: Path, big: bool) -> None:
    with pytest.raises(MediaTooLarge, match="bytes of metadata in one place"):
        read_scene(with_text(tmp_path / "a.tif", 4 * 2**20, big=big), Limits())
    assert read_scene(with_text(tmp_path / "a.tif", MAX_METADATA_BYTES // 8, big=big), Limits()).width == 16


def test_a_tiff_of_very_many_directories_is_refused(tmp_path: Path) -> None:
    data = bytearray(scene(tmp_path / "a.tif").read_bytes())
    [first] = struct.unpack_from("<I", data, 4)
    [count] = struct.unpack_from("<H", data, first)
    directory, link = data[first : first + 2 + 12 * count], first + 2 + 12 * count
    for _ in range(MAX_DIRECTORIES):
        data += bytes(len(data) % 2)
        struct.pack_into("<I", data, link, len(data))
        link = len(data) + len(directory)
        data += directory + bytes(4)
    (tmp_path / "a.tif").write_bytes(data)
    with pytest.raises(MediaTooLarge, match=f"more than {MAX_DIRECTORIES} pages"):
        read_scene(tmp_path / "a.tif", Limits())


def test_xml_of_many_megabytes_in_a_jpeg_2000_is_refused(tmp_path: Path) -> None:
    path = scene(tmp_path / "a.jp2", "JP2OpenJPEG")
    assert read_scene(path, Limits()).width == 16
    data, xml = path.read_bytes(), b"<a>" + bytes(4 * 2**20) + b"</a>"
    at = data.index(b"jp2c") - 4
    path.write_bytes(data[:at] + struct.pack(">I4s", len(xml) + 8, b"xml ") + xml + data[at:])
    with pytest.raises(MediaTooLarge, match="bytes of metadata"):
        read_scene(path, Limits())


@pytest.mark.parametrize(
    "data", [b"", b"II*\0", b"II*\0" + b"\xff" * 12, b"II+\0\x08\0\0\0" + b"\xff" * 8, b"MM\0*" + bytes(12)]
)
@pytest.mark.parametrize("driver", ["GTiff", "JP2OpenJPEG"])
def test_damage_is_left_to_gdal(tmp_path: Path, data: bytes, driver: str) -> None:
    (tmp_path / "a").write_bytes(data)
    check_metadata(tmp_path / "a", driver)
