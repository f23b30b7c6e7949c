"""Safe GDAL settings, applied before GDAL is loaded. All modules import rasterio and pyogrio from here.

GDAL reads these settings from the environment, some of them when it registers its drivers. Therefore they must be set
before the first import. They restrict GDAL to the file that it is given: no files beside it (sidecar files), no
`.aux.xml`, and no formats whose files refer to other files or URLs.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import MediaUnreadable

#: Formats of which GDAL knows nothing.
SKIPPED = "VRT,WMS,WCS,WMTS,HTTP,GTI,STACTA,STACIT,DAAS,EEDA,EEDAI,NGW,OGCAPI,PLMOSAIC,PLSCENES,TileDB,Zarr"
_SETTINGS = {
    "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
    "GDAL_PAM_ENABLED": "NO",
    "GDAL_SKIP": SKIPPED,
    "VRT_VIRTUAL_OVERVIEWS": "NO",
    # GDAL prints messages that rasterio does not catch, such as warnings while it reads. Errors are raised anyway.
    "CPL_LOG": os.devnull,
    # MB of decoded blocks in the whole process. Each block is decoded once, so a larger cache gains nothing.
    "GDAL_CACHEMAX": "64",
}
os.environ.update({name: value for name, value in _SETTINGS.items() if name not in os.environ})

import numpy.ma  # noqa: E402, F401  (rasterio's first write would import it: in each IO process, for 0.06 s)
import rasterio  # noqa: E402
import rasterio.control  # noqa: E402
import rasterio.features  # noqa: E402
import rasterio.shutil  # noqa: E402
import rasterio.transform  # noqa: E402
import rasterio.warp  # noqa: E402
import rasterio.windows  # noqa: E402
from rasterio._err import CPLE_BaseError  # noqa: E402
from rasterio.enums import ColorInterp, Resampling  # noqa: E402
from rasterio.errors import CRSError, NotGeoreferencedWarning, RasterioError  # noqa: E402

# pyogrio bundles its own GDAL, which prints a warning for each skipped driver that it was built without.
_skip = os.environ["GDAL_SKIP"]
os.environ["GDAL_SKIP"] = ",".join(name for name in _skip.split(",") if name != "TileDB")
import pyogrio.raw  # noqa: E402

os.environ["GDAL_SKIP"] = _skip

#: Marks of message parts with file paths or GDAL internals, which are not shown to users.
_FOR_PROGRAMMERS = re.compile(r"/|\bmedia\b|\bband \d|\(\)|IReadBlock")
#: Words by which WKT names files. EPSG:3857 of GDAL has `+nadgrids=@null`, which is none.
_FILES = re.compile(r"PARAMETERFILE|PROJ4_GRIDS|(?:grids|init|file|catalog|tables)\s*=(?!@null[\s\"])", re.IGNORECASE)

__all__ = [
    "CPLE_BaseError",
    "CRSError",
    "ColorInterp",
    "RasterioError",
    "Resampling",
    "names_files",
    "pyogrio",
    "rasterio",
    "reading",
    "without_georeference",
]


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Translate GDAL's errors for a user's file to `MediaUnreadable` with `what` and the reason, if GDAL gives one."""
    try:
        yield
    except (RasterioError, CRSError, CPLE_BaseError) as error:
        reason = readable_part(str(error.__cause__ or error))
        raise MediaUnreadable(f"{what}; it is damaged or incomplete{reason and f' ({reason})'}.") from error


def readable_part(message: str) -> str:
    """Return the readable parts of a GDAL message.

    Dropped are paths and function names: `/spool/1/media.tif, band 1: IReadBlock failed at ...: TIFFReadTile() failed`.
    """
    parts = [part.strip(" .'") for part in re.split(r":\s*", message)]
    sentences = [part for part in parts if " " in part and not _FOR_PROGRAMMERS.search(part)]
    return ": ".join(sentences)


def names_files(wkt: str) -> bool:
    """Return True for WKT that PROJ may read files for, such as grids of a datum."""
    return _FILES.search(wkt) is not None


@contextmanager
def without_georeference() -> Iterator[None]:
    """Open files without rasterio's warning about a missing georeference, which is optional for a scene."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        yield
