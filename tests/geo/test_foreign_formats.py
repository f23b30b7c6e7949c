"""Files of other formats are refused by their format's name, with the command that makes a GeoTIFF of them."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from penstock.errors import MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.read.foreign_formats import foreign_format
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.read.raster import read_scene
from tests.support.geo.scenes import pattern, write_scene

#: Files that other libraries write: name -> (contents, name of the format, argument of gdal_translate).
WRITTEN: dict[str, tuple[Callable[[Path], None], str, str]] = {}
Writer = Callable[[Path], None]


def kind(name: str, said: str, source: str) -> Callable[[Writer], Writer]:
    def add(write: Writer) -> Writer:
        WRITTEN[name] = write, said, source
        return write

    return add


@kind("a.vrt", "a virtual raster (VRT)", "scene.vrt")
def vrt(path: Path) -> None:
    path.write_text('<VRTDataset rasterXSize="64" rasterYSize="64"></VRTDataset>')


@kind("b.xml", "a virtual raster (VRT)", "scene.xml")
def vrt_with_a_declaration(path: Path) -> None:
    path.write_text('\ufeff<?xml version="1.0"?>\n<VRTDataset rasterXSize="64" rasterYSize="64"></VRTDataset>')


@kind("c.zip", "a zip archive", "/vsizip/scene.zip/INNER.tif")
def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("S2A.SAFE/MTD_MSIL2A.xml", "<a/>")


@kind("d.tar", "a tar archive", "/vsitar/scene.tar/INNER.tif")
def tape(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        file.addfile(tarfile.TarInfo("LC08_B2.TIF"), io.BytesIO())


@kind("e.gz", "a gzip file", "/vsigzip/scene.gz")
def packed(path: Path) -> None:
    path.write_bytes(gzip.compress(b"II*\0"))


@kind("f.gpkg", "a GeoPackage", "-oo TABLE=LAYER scene.gpkg")
def geopackage(path: Path) -> None:
    database(path, int.from_bytes(b"GPKG"))


@kind("g.mbtiles", "an MBTiles file", "scene.mbtiles")
def mbtiles(path: Path) -> None:
    database(path, int.from_bytes(b"MPBX"))


@kind("h.sqlite", "an SQLite file, such as a GeoPackage", "-oo TABLE=LAYER scene.sqlite")
def other_database(path: Path) -> None:
    database(path, 0)


def database(path: Path, application: int) -> None:
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA application_id = {application}")
        file.execute("CREATE TABLE a (b)")
    file.close()


@kind("i.png", "a PNG picture", "scene.png")
def png(path: Path) -> None:
    Image.fromarray(pattern(64, 64)[0]).save(path)


@kind("j.jpg", "a JPEG picture", "scene.jpg")
def jpeg(path: Path) -> None:
    Image.fromarray(pattern(64, 64)[0]).save(path)


@kind("k.hdr", "an ENVI header", "scene.img")
def envi_header(path: Path) -> None:
    path.write_text("ENVI\nsamples = 64\nlines = 64\nbands = 1\n")


@kind("l.img", "numbers without a header, such as the pixels of ENVI", "scene.img")
def envi_pixels(path: Path) -> None:
    np.full((64, 64), 1234, np.uint16).tofile(path)


@kind("zarr.json", "the metadata of a Zarr store", 'ZARR:"scene.zarr":/VARIABLE')
def zarr(path: Path) -> None:
    path.write_text(json.dumps({"zarr_format": 3, "node_type": "array"}))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_of_another_format_is_refused_by_name_with_the_command_that_converts_it(
    name: str, tmp_path: Path
) -> None:
    write, said, source = WRITTEN[name]
    write(tmp_path / name)
    with pytest.raises(MediaUnreadable) as refused:
        read_scene(tmp_path / name, Limits())
    assert f"it is {said}" in str(refused.value)
    assert f"Convert it: `gdal_translate {source} scene.tif`" in str(refused.value)


@pytest.mark.parametrize(
    ("driver", "name", "said", "source"),
    [
        ("netCDF", "a.nc", "a NetCDF file", "NETCDF:scene.nc:VARIABLE"),
        ("HFA", "a.img", "an Erdas Imagine file", "scene.img"),
        ("GPKG", "a.gpkg", "a GeoPackage", "-oo TABLE=LAYER scene.gpkg"),
        ("NITF", "a.ntf", "a NITF file", "scene.ntf"),
        ("JPEGXL", "a.jxl", "a JPEG XL file", "scene.jxl"),
        ("FITS", "a.fits", "a FITS file", "scene.fits"),
        ("PCIDSK", "a.pix", "a PCIDSK file", "scene.pix"),
        ("AAIGrid", "a.asc", "an ASCII grid", "scene.asc"),
        ("MBTiles", "a.mbtiles", "an MBTiles file", "scene.mbtiles"),
    ],
)
def test_the_files_that_gdal_writes_are_known(driver: str, name: str, said: str, source: str, tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(64, 64))
    try:
        rasterio.shutil.copy(scene, tmp_path / name, driver=driver)
    except Exception:  # rasterio's wheel has other drivers on each platform
        pytest.skip(f"this GDAL does not write {driver}")
    with pytest.raises(MediaUnreadable) as refused:
        read_scene(tmp_path / name, Limits())
    assert f"it is {said}" in str(refused.value)
    assert f"`gdal_translate {source} scene.tif`" in str(refused.value)


@pytest.mark.parametrize(
    ("head", "suffix", "said"),
    [
        (b"\x89HDF\r\n\x1a\n", ".h5", "an HDF5 file"),
        (b"\x89HDF\r\n\x1a\n", "", "an HDF5 file"),
        (b"\x89HDF\r\n\x1a\n", ".nc", "a NetCDF file"),
        (b"CDF\x05", "", "a NetCDF file"),
        (b"\x0e\x03\x13\x01", ".hdf", "an HDF4 file"),
        (b"\xff\x0a", "", "a JPEG XL file"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "", "a JPEG XL file"),
        (b"GRIB\0\0\0\2", "", "a GRIB file"),
    ],
)
def test_signatures_of_formats_that_gdal_may_not_write(head: bytes, suffix: str, said: str) -> None:
    found = foreign_format(head + bytes(200), suffix)
    assert found is not None
    assert found.name == said


def test_the_command_converts_a_netcdf_file(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "scene.tif", pattern(64, 64))
    try:
        rasterio.shutil.copy(scene, tmp_path / "scene.nc", driver="netCDF")
    except Exception:
        pytest.skip("this GDAL does not write netCDF")
    with rasterio.open(f"NETCDF:{tmp_path / 'scene.nc'}:Band1") as file:
        np.testing.assert_array_equal(file.read(), pattern(64, 64))
