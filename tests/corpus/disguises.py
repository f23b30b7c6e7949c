"""Files that name other files or addresses, or hold them packed, called `.tif` or a text."""

from __future__ import annotations

import gzip
import io
import json
import stat
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import h5py

from tests.corpus.rasters import raster, tagged
from tests.support.geo.scenes import pattern

#: Makes a file that names this file and this address, neither of which may be touched.
Maker = Callable[[Path, str], bytes]


def vrt(source: str, *, attributes: str = 'relativeToVRT="0"', inside: str = "") -> bytes:
    """Return GDAL's list of other files, with this one."""
    return (
        f'<VRTDataset rasterXSize="64" rasterYSize="64"><VRTRasterBand dataType="Byte" band="1">{inside}<SimpleSource>'
        f"<SourceFilename {attributes}>{source}</SourceFilename><SourceBand>1</SourceBand></SimpleSource>"
        "</VRTRasterBand></VRTDataset>"
    ).encode()


def wms(url: str) -> bytes:
    """Return GDAL's description of a map server."""
    return (
        f'<GDAL_WMS><Service name="TMS"><ServerUrl>{url}</ServerUrl></Service><DataWindow><SizeX>64</SizeX>'
        "<SizeY>64</SizeY></DataWindow><BandsCount>1</BandsCount></GDAL_WMS>"
    ).encode()


def gdal_json(file: str) -> bytes:
    """Return a GDAL command line as a data set (GDALG)."""
    line = f"gdal raster reproject --input {file} --output-format stream streamed_dataset"
    return json.dumps({"type": "gdal_streamed_alg", "command_line": line}).encode()


def stac(url: str) -> bytes:
    """Return a STAC item collection whose asset lies there."""
    asset = {"href": url, "type": "image/tiff", "proj:shape": [64, 64], "proj:transform": [1, 0, 0, 0, -1, 0]}
    item = {"type": "Feature", "stac_version": "1.0.0", "properties": {"proj:epsg": 32633}, "assets": {"a": asset}}
    return json.dumps({"type": "FeatureCollection", "features": [item]}).encode()


def zipped(name: str, data: bytes) -> bytes:
    """Return a zip file with one file in it."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
        return file.getvalue()


def zipped_link(name: str, target: str) -> bytes:
    """Return a zip file with a symbolic link in it."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            info = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, target)
        return file.getvalue()


def zarr_with_code() -> bytes:
    """Return a zipped Zarr store of version 2 whose numbers would be unpickled."""
    array = {
        "zarr_format": 2, "shape": [64, 64], "chunks": [64, 64], "dtype": "|O", "order": "C", "fill_value": None,
        "compressor": None, "filters": [{"id": "pickle"}],
    }  # fmt: skip
    code = b"cposix\nsystem\n(S'touch /tmp/unpickled'\ntR."
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in (
                (".zgroup", b'{"zarr_format": 2}'),
                ("blue/.zarray", json.dumps(array)),
                ("blue/0.0", code),
            ):
                archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data)
        return file.getvalue()


def hdf5_of(path: Path, *, link: bool) -> bytes:
    """Return an HDF5 file with a link to another file, or with a dataset whose numbers lie in one."""
    with io.BytesIO() as buffer:
        with h5py.File(buffer, "w") as file:
            if link:
                file["far"] = h5py.ExternalLink(str(path), "/")
            else:
                file.create_dataset("far", (8, 8), "u1", external=[(str(path), 0, h5py.h5f.UNLIMITED)])
        return buffer.getvalue()


def tarred(name: str, data: bytes) -> bytes:
    """Return a tar file with one file and a link to a file in it."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
            link = tarfile.TarInfo("link.tif")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
        return file.getvalue()


def sound() -> bytes:
    """Return a sound scene of 64 x 64 px."""
    return raster(pattern(64, 64))


#: Files that are no raster by their first bytes, whatever another reader would make of them.
DISGUISES: Mapping[str, Maker] = {
    "vrt.tif": lambda file, _: vrt(str(file)),
    "vrt-of-an-address.tif": lambda _, url: vrt(f"/vsicurl/{url}"),
    "vrt-relative.tif": lambda file, _: vrt(f"../../../../../../../../..{file}", attributes='relativeToVRT="1"'),
    "vrt-with-bom.tif": lambda file, _: b"\xef\xbb\xbf" + vrt(str(file)),
    "vrt-behind-spaces.tif": lambda file, _: b" \n" * 50 + vrt(str(file)),
    "vrt-with-python.tif": lambda file, _: vrt(
        str(file),
        inside="<PixelFunctionLanguage>Python</PixelFunctionLanguage><PixelFunctionType>os.system</PixelFunctionType>",
    ),
    "vrt-in-utf-16.tif": lambda file, _: vrt(str(file)).decode().encode("utf-16"),
    "gti.tif": lambda file, _: (
        f"<GDALTileIndexDataset><IndexDataset>{file}</IndexDataset></GDALTileIndexDataset>".encode()
    ),
    "wms.tif": lambda _, url: wms(url),
    "wmts.tif": lambda _, url: f"<GDAL_WMTS><GetCapabilitiesUrl>{url}</GetCapabilitiesUrl></GDAL_WMTS>".encode(),
    "wcs.tif": lambda _, url: f"<WCS_GDAL><ServiceURL>{url}</ServiceURL></WCS_GDAL>".encode(),
    "entities.tif": lambda file, _: f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{file}">]><a>&x;</a>'.encode(),
    "gdalg.tif": lambda file, _: gdal_json(str(file)),
    "stac.tif": lambda _, url: stac(f"/vsicurl/{url}"),
    "ogc-api.tif": lambda _, url: json.dumps({"links": [{"rel": "data", "href": url}]}).encode(),
    "path.tif": lambda file, _: str(file).encode(),
    "connection.tif": lambda file, _: f"GTIFF_DIR:1:{file}".encode(),
    "curl.tif": lambda _, url: f"/vsicurl/{url}".encode(),
    "zip.tif": lambda *_: zipped("scene.tif", sound()),
    "zip-that-climbs.tif": lambda *_: zipped("../../../../tmp/scene.tif", sound()),
    "zip-with-a-link.tif": lambda file, _: zipped_link("a.SAFE/MTD_MSIL2A.xml", str(file)),
    "zip-bomb.tif": lambda *_: zipped("scene.tif", bytes(2**26)),
    "gzip.tif": lambda *_: gzip.compress(sound(), mtime=0),
    "gzip-bomb.tif": lambda *_: gzip.compress(bytes(2**26), mtime=0),
    "tar.tif": lambda *_: tarred("scene.tif", sound()),
    "hdf5.tif": lambda *_: b"\x89HDF\r\n\x1a\n" + bytes(100),
    "hdf5-link.tif": lambda file, _: hdf5_of(file, link=True),
    "hdf5-data-elsewhere.tif": lambda file, _: hdf5_of(file, link=False),
    "zarr-with-code.tif": lambda *_: zarr_with_code(),
    "netcdf.tif": lambda *_: b"CDF\x01" + bytes(100),
    "fits.tif": lambda *_: b"SIMPLE  =                    T".ljust(80) * 36,
    "sqlite.tif": lambda *_: b"SQLite format 3\0" + bytes(100),
    "aux.xml.tif": lambda *_: (
        b"<PAMDataset><PAMRasterBand band='1'><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>"
    ),
}

#: Sound scenes that name another file or address beside: they are read as if they did not.
NAMING: Mapping[str, Maker] = {
    "overviews-elsewhere.tif": lambda file, _: tagged("OVERVIEWS", OVERVIEW_FILE=str(file)),
    "overviews-at-an-address.tif": lambda _, url: tagged("OVERVIEWS", OVERVIEW_FILE=f"/vsicurl/{url}"),
    "mask-elsewhere.tif": lambda file, _: tagged("", INTERNAL_MASK_FLAGS_1="2", MASK_FILE=str(file)),
    "geolocation-elsewhere.tif": lambda file, _: tagged("GEOLOCATION", X_DATASET=str(file), Y_DATASET=str(file)),
    "derived-elsewhere.tif": lambda file, _: tagged("DERIVED_SUBDATASETS", DERIVEDSUBDATASET_1_NAME=str(file)),
    "vrt-as-metadata.tif": lambda file, _: tagged("xml:VRT", VRT=vrt(str(file)).decode()),
}

#: Files that other readers look for beside a scene of this name.
BESIDE: Mapping[str, Maker] = {
    "beside.tif": lambda *_: sound(),
    "beside.tif.aux.xml": lambda *_: (
        b'<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue><Scale>3</Scale></PAMRasterBand></PAMDataset>'
    ),
    "beside.tif.ovr": lambda *_: b"II*\0 no overview",
    "beside.tif.msk": lambda *_: raster(0 * pattern(64, 64)),
    "beside.tfw": lambda *_: b"1000\n0\n0\n-1000\n0\n0\n",
    "beside.prj": lambda *_: b"EPSG:3857",
}
