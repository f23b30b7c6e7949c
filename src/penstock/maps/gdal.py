"""GDAL for drawing tiles: the settings of `processors.geo.read.gdal`, but with the driver by which GDAL warps.

The package imports this module first, before any other loads GDAL. Files are opened by the driver GTiff alone.
"""

from __future__ import annotations

import os
from typing import Final

os.environ["GDAL_SKIP"] = "WMS,WCS,WMTS,HTTP,GTI,STACTA,STACIT"

from penstock.processors.geo.read.gdal import names_files, rasterio, reading

#: Settings for files that are read by ranges. A link for GET is no link for HEAD.
REMOTE: Final = {
    "CPL_VSIL_CURL_USE_HEAD": "NO",
    "CPL_VSIL_CURL_CACHE_SIZE": str(64 << 20),
    "GDAL_HTTP_CONNECTTIMEOUT": "5",
    "GDAL_HTTP_TIMEOUT": "30",
    "GDAL_HTTP_MAX_RETRY": "2",
    "GDAL_HTTP_RETRY_DELAY": "0.5",  # seconds; 30 without it
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_INGESTED_BYTES_AT_OPEN": str(32 << 10),
}

__all__ = ["REMOTE", "names_files", "rasterio", "reading"]
