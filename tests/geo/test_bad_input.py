"""Unusable scenes are rejected with the reason, before or during reading, and without internal paths."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.errors import InputError, InvalidInput, MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read import gdal
from penstock.processors.geo.read.gdal import rasterio, without_georeference
from penstock.processors.geo.read.raster import read_scene
from tests.support.geo.scenes import NORTH_UP, make_model, pattern, segment, write_scene


def text(path: Path) -> None:
    path.write_text("lat,lon\n1,2\n")


def nothing(path: Path) -> None:
    path.touch()


def page(path: Path) -> None:
    path.write_text("\n<!doctype html><title>404</title>")


def vrt(path: Path) -> None:
    secret = write_scene(path.with_name("secret.tif"), pattern(64, 64))
    path.write_text(
        f'<VRTDataset rasterXSize="64" rasterYSize="64"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        f"<SourceFilename>{secret}</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand></VRTDataset>"
    )


def picture(path: Path) -> None:
    Image.fromarray(pattern(64, 64)[0]).save(path, format="PNG")


def cut(keep: float) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        noise = np.random.default_rng(1).integers(0, 255, (1, 512, 512), np.uint8)
        write_scene(path, noise, tiled=True, blockxsize=128, blockysize=128, compress="deflate")
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * keep)])

    return write


def declares(height: int, width: int, **profile: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        place = {"crs": "EPSG:32633", "transform": NORTH_UP, "SPARSE_OK": True, "compress": "deflate"}
        with rasterio.open(
            path, "w", driver="GTiff", height=height, width=width, count=1, dtype="uint8", **{**place, **profile}
        ):
            pass

    return write


def flat(path: Path) -> None:
    with without_georeference():
        write_scene(path, pattern(64, 64), transform=rasterio.Affine(0, 0, 5, 0, 0, 5))


def far_away(path: Path) -> None:
    write_scene(path, pattern(64, 64), transform=rasterio.Affine(1e307, 0, 0, 0, -1, 0))


def complex_numbers(path: Path) -> None:
    write_scene(path, pattern(64, 64).astype(np.complex64))


@pytest.mark.parametrize(
    ("write", "error", "sentence"),
    [
        (text, MediaUnreadable, "neither a GeoTIFF nor a JPEG 2000 file: it holds text"),
        (nothing, MediaUnreadable, "it is empty"),
        (page, MediaUnreadable, "it holds XML or HTML"),
        (vrt, MediaUnreadable, r"it is a virtual raster \(VRT\), .*`gdal_translate scene.vrt scene.tif`"),
        (picture, MediaUnreadable, "it is a PNG picture. Convert it: `gdal_translate scene.png scene.tif`"),
        (cut(0.0001), MediaUnreadable, "cannot be opened; it is damaged or incomplete"),
        (cut(0.5), MediaUnreadable, "rows 128 to 255 cannot be read; it is damaged or incomplete"),
        (cut(0.95), MediaUnreadable, "rows 384 to 511 cannot be read; it is damaged or incomplete"),
        (
            declares(400_000, 400_000, tiled=True),
            MediaTooLarge,
            "160,000,000,000 pixels; the model takes 1,000,000,000",
        ),
        (
            declares(20_000, 20_000, tiled=True, blockxsize=20_000, blockysize=20_000),
            MediaTooLarge,
            "take 400,000,000 bytes each; .* Write a tiled file",
        ),
        (flat, InvalidInput, "georeference .* not usable"),
        (far_away, InvalidInput, "georeference .* not usable"),
        (complex_numbers, InvalidInput, "data type is complex64; one real type is needed"),
    ],
)
def test_bad_files_are_refused_with_the_reason(
    write: Callable[[Path], None], error: type[InputError], sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / "scene.tif"
    write(path)
    with pytest.raises(error, match=sentence) as raised:
        segment(path, tmp_path / "out", model=make_model(max_pixels=10**9))
    assert str(tmp_path) not in raised.value.detail
    assert not raised.value.retryable


def test_formats_that_name_other_files_are_not_even_there(tmp_path: Path) -> None:
    vrt(tmp_path / "scene.tif")
    open_it = (
        "import sys, penstock.processors.geo.segmentation, rasterio, rasterio.errors\n"
        "try: rasterio.open(sys.argv[1])\n"
        "except rasterio.errors.RasterioIOError: print('refused')"
    )
    command = [sys.executable, "-c", open_it, str(tmp_path / "scene.tif")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "refused\n"


def test_sidecar_files_are_not_read(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "scene.tif", pattern(64, 64))
    (tmp_path / "scene.tif.aux.xml").write_text(
        '<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue><Scale>3</Scale></PAMRasterBand></PAMDataset>'
    )
    _, result = segment(path, tmp_path / "out")
    assert result.data is not None
    assert result.data["radiometry"]["source"] == "model default"
    assert result.data["nodata_pixels"] == 0


def test_an_address_in_a_jpeg_2000_file_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "scene.jp2"
    place = {"crs": "EPSG:32633", "transform": NORTH_UP, "GEOJP2": "NO", "GMLJP2": "YES"}
    with rasterio.open(path, "w", driver="JP2OpenJPEG", count=1, height=64, width=64, dtype="uint8", **place) as file:
        file.write(pattern(64, 64))
    told, whole = b"urn:ogc:def:crs:EPSG::32633", path.read_bytes()
    assert told in whole
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/".encode()
        path.write_bytes(whole.replace(told, address.ljust(len(told), b"x")))
        assert read_scene(path, Limits()).crs is None
        with pytest.raises(BlockingIOError):  # no connection was made
            server.accept()


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "/spool/7/media.tif: TIFFReadDirectory:Failed to read directory at offset 8",
            "Failed to read directory at offset 8",
        ),
        ("/spool/7/media.tif, band 1: IReadBlock failed at X offset 0: TIFFReadEncodedTile() failed.", ""),
        ("Unsupported TIFF configuration: BitsPerSample(=65535)", "Unsupported TIFF configuration"),
        ("'/spool/7/media.tif' not recognized as being in a supported file format.", ""),
    ],
)
def test_of_what_gdal_says_the_sentences_are_told(message: str, told: str) -> None:
    assert gdal.readable_part(message) == told
