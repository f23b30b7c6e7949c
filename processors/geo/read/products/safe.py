"""Sentinel-2 products in zipped SAFE, levels 1C and 2A: bands in their finest resolution, masks and metadata.

Source: Sentinel-2 Products Specification Document (`MTD_MSIL1C.xml`, `MTD_MSIL2A.xml`, `GRANULE/*/IMG_DATA`).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.models import Limits
from penstock.processors.geo.mask_kinds import MaskKindName
from penstock.processors.geo.read.products.archive import read_text
from penstock.processors.geo.read.products.product import Product, Raster
from penstock.processors.geo.read.raster import open_raster, read_header
from penstock.processors.geo.read.sensors import SENTINEL_2
from penstock.processors.geo.read.sidecar import parse_sidecar

_DRIVER: Final = "JP2OpenJPEG"
_METADATA: Final = re.compile(r"(?:[^/]+/)?MTD_MSIL(?:1C|2A)\.xml")
_IMAGE: Final = re.compile(
    r"(?:[^/]+/)?GRANULE/(?P<granule>[^/]+)/IMG_DATA/(?:R\d\dm/)?\w+_(?P<code>B\d\d|B8A|SCL)(?:_(?P<metres>\d\d)m)?\.jp2"
)
_PROBABILITY: Final = re.compile(
    r"(?:[^/]+/)?GRANULE/(?P<granule>[^/]+)/QI_DATA/MSK_(?P<code>CLDPRB)_(?P<metres>\d\d)m\.jp2"
)
_MASKS: Final[Mapping[str, MaskKindName]] = {"SCL": "scl", "CLDPRB": "cloud_probability"}
#: Files of other products -> the products.
_OTHERS: Final = (
    (re.compile(r"S2[ABC]_OPER_.*\.xml"), "a Sentinel-2 product in the format before 2016"),
    (re.compile(r"S1[ABCD]_.*"), "a Sentinel-1 product, whose radar amplitudes are not calibrated"),
    (re.compile(r"S3[ABC]_.*"), "a Sentinel-3 product, which is a swath"),
)
_READ: Final = "Sentinel-2 L1C and L2A are read"


@dataclass(frozen=True, slots=True)
class ZipPart:
    """An image inside a zip archive, which GDAL reads in place, by windows; for `Scene.part`."""

    member: str

    def open(self, path: Path) -> Any:
        """Return the image as a dataset (rasterio). Raises `MediaUnreadable`."""
        return open_raster(f"/vsizip/{{{path}}}/{self.member}", _DRIVER, path.stat().st_size)


def is_safe(archive: zipfile.ZipFile) -> bool:
    """Return True for an archive with the metadata of a Sentinel-2 product, or of another product in SAFE."""
    names = archive.namelist()
    return any(_METADATA.fullmatch(name) for name in names) or any(
        name.rpartition("/")[2] in ("manifest.safe", "xfdumanifest.xml") for name in names
    )


def read_safe(path: Path, archive: zipfile.ZipFile, limits: Limits) -> Product:
    """Return the rasters of a product.

    Raises `InvalidInput` for another product than Sentinel-2 L1C and L2A and for several granules, and
    `MediaUnreadable` for an incomplete one.
    """
    names = archive.namelist()
    documents = [name for name in names if _METADATA.fullmatch(name)]
    if len(documents) != 1:
        raise _unknown(names, len(documents))
    sidecar = parse_sidecar(read_text(archive, documents[0]))
    images = [found for name in names if (found := _IMAGE.fullmatch(name) or _PROBABILITY.fullmatch(name))]
    if len({image["granule"] for image in images}) > 1:
        raise InvalidInput("The SAFE product has several granules (tiles): send one product for each.")
    chosen = _finest(images)
    if not any(code not in _MASKS for code in chosen):
        raise MediaUnreadable("The SAFE product is incomplete: it has no images of bands (GRANULE/*/IMG_DATA/*.jp2).")
    rasters = {code: _raster(path, code, name, limits) for code, name in chosen.items()}
    masks = {_MASKS[code]: raster for code, raster in rasters.items() if code in _MASKS}
    bands = tuple(raster for code, raster in rasters.items() if code not in _MASKS)
    return Product(bands, sidecar=sidecar, masks=masks)


def _finest(images: Sequence[re.Match[str]]) -> dict[str, str]:
    """Return the name of the finest image of each band, in the order of the codes."""
    found = dict[str, tuple[int, str]]()
    for image in images:
        metres, code = int(image["metres"] or 0), image["code"]
        if code not in found or metres < found[code][0]:
            found[code] = metres, image[0]
    return {code: found[code][1] for code in sorted(found)}


def _raster(path: Path, code: str, member: str, limits: Limits) -> Raster:
    scene = read_header(path, _DRIVER, limits, ZipPart(member))
    name = code if code not in _MASKS else None
    bands = tuple(replace(band, name=name, sensor=SENTINEL_2) for band in scene.bands)
    return Raster(member.rpartition("/")[2], replace(scene, bands=bands))


def _unknown(names: Sequence[str], documents: int) -> InvalidInput:
    if documents > 1:
        return InvalidInput(f"The zip archive has {documents} SAFE products: send one in each job.")
    folders = [part for name in names for part in name.split("/")[:2]]
    known = next((words for pattern, words in _OTHERS for part in folders if pattern.fullmatch(part)), None)
    return InvalidInput(f"The SAFE archive is {known or 'of a product that is not known'}. {_READ}.")
