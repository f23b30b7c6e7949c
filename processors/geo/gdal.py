"""GDAL, made safe before it is loaded. Every module here that needs rasterio or pyogrio gets it from this one.

GDAL reads these settings from the environment: some when it registers its drivers, so they must stand before the first
import. They keep it from reading anything but the file it is given: no neighbours (sidecar files), no `.aux.xml`, and
no formats whose files are lists of other files or addresses.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import MediaUnreadable

_SETTINGS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_SKIP": "VRT,WMS,WCS,WMTS,HTTP,GTI,STACTA,STACIT,DAAS,EEDA,EEDAI,NGW,OGCAPI,PLMOSAIC,PLSCENES,TileDB,Zarr",
    "VRT_VIRTUAL_OVERVIEWS": "NO",
    # Megabytes of blocks, of all the process's scenes together. Each is decoded once: more makes nothing faster.
    "GDAL_CACHEMAX": "64",
}
os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})

import rasterio  # noqa: E402
import rasterio.features  # noqa: E402
import rasterio.shutil  # noqa: E402
import rasterio.windows  # noqa: E402
from rasterio._err import CPLE_BaseError  # noqa: E402
from rasterio.enums import ColorInterp, Resampling  # noqa: E402
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError  # noqa: E402

# pyogrio brings a GDAL of its own, which prints a line for each driver to skip that it was built without.
_skip = os.environ["GDAL_SKIP"]
os.environ["GDAL_SKIP"] = ",".join(name for name in _skip.split(",") if name != "TileDB")
import pyogrio.raw  # noqa: E402

os.environ["GDAL_SKIP"] = _skip

#: What a part of GDAL's messages holds that tells our paths or its own insides.
_FOR_PROGRAMMERS = re.compile(r"/|\bmedia\b|\bband \d|\(\)|IReadBlock")

__all__ = ["ColorInterp", "Resampling", "pyogrio", "rasterio", "reading", "without_georeference"]


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate GDAL's errors while a caller's file is read: `MediaUnreadable` with `what` and, if it tells, why."""
    try:
        yield
    except (RasterioError, CRSError, CPLE_BaseError) as error:
        said = told(str(error.__cause__ or error))
        raise MediaUnreadable(f"{what}; it is damaged or incomplete{said and f' ({said})'}.") from error


def told(message: str) -> str:
    """Return what a message of GDAL tells a reader: those of its parts that are sentences.

    The others are paths and functions: `/spool/1/media.tif, band 1: IReadBlock failed at ...: TIFFReadTile() failed`.
    """
    parts = [part.strip(" .'") for part in re.split(r":\s*", message)]
    sentences = [part for part in parts if " " in part and not _FOR_PROGRAMMERS.search(part)]
    return ": ".join(sentences)


@contextmanager
def without_georeference() -> Iterator[None]:
    """Open files that have no georeference without rasterio's warning: a scene may well have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
