"""Product metadata (sidecar) with radiometry and time: Sentinel-2 `MTD_MSIL*.xml`, Landsat `*_MTL.json`.

Sources: Sentinel-2 Products Specification Document (`RADIO_ADD_OFFSET`, `BOA_ADD_OFFSET` since processing baseline
04.00); Landsat 8-9 Collection 2 Data Format Control Book and Landsat 7 Data Users Handbook (`REFLECTANCE_MULT_BAND_x`,
and, for Level 1, division by the sine of the sun's elevation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.geo.read.band_names import canonical, named_sensor
from penstock.processors.geo.read.metadata import parse_json, parse_number, parse_time, parse_xml, read_text
from penstock.processors.geo.read.radiometry import Declaration
from penstock.processors.geo.read.stac_bands import OFFSETS_SINCE

_WHAT = "sidecar"

#: Nodata number of both products, compared before the offset is added.
_NODATA = 0.0

#: Root element -> names of the elements with the divisor and the offset of a band.
_SENTINEL2 = {
    "Level-1C_User_Product": ("QUANTIFICATION_VALUE", "RADIO_ADD_OFFSET"),
    "Level-2A_User_Product": ("BOA_QUANTIFICATION_VALUE", "BOA_ADD_OFFSET"),
}
#: Band names by `band_id`.
_SENTINEL2_BANDS = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """Radiometry of a product's bands, by canonical band name."""

    bands: Mapping[str, Declaration]
    #: Acquisition time; None if the document gives no time with a time zone.
    acquired: datetime | None = None
    #: Names of the platform and sensor.
    platforms: tuple[str, ...] = ()

    def of(self, names: Sequence[str]) -> Declaration:
        """Return the declaration for the first known band name.

        For an unknown name, return the declaration that all bands share; raise `InvalidInput` if the bands differ.
        """
        known = next((self.bands[key] for key in map(canonical, names) if key in self.bands), None)
        if known is not None:
            return known
        if len(declared := set(self.bands.values())) == 1:
            return declared.pop()
        raise InvalidInput(
            f"The sidecar has no band named {' or '.join(names)}, and its bands have different radiometry: "
            f"{', '.join(self.bands)}. Name the bands of the files with `files[].bands`."
        )


def read_sidecar(path: Path) -> Sidecar:
    """Read a product's metadata. Raises `MediaUnreadable` for any other document, `MediaTooLarge` for a huge one."""
    return parse_sidecar(read_text(path, _WHAT))


def parse_sidecar(text: str) -> Sidecar:
    """Return a product's metadata from a document's text. Raises `MediaUnreadable` for any other document."""
    if text.lstrip().startswith("<"):
        root = parse_xml(text, _WHAT)
        return Sidecar(_sentinel2(root), parse_time(root.findtext(".//PRODUCT_START_TIME")), ("Sentinel-2",))
    if text.lstrip().startswith("{"):
        document = parse_json(text, _WHAT)
        bands, attributes = _landsat(document), document["LANDSAT_METADATA_FILE"]["IMAGE_ATTRIBUTES"]
        return Sidecar(bands, _landsat_acquired(document), (str(attributes.get("SPACECRAFT_ID")),))
    raise _unknown()


def _sentinel2(root: ElementTree.Element) -> dict[str, Declaration]:
    names = _SENTINEL2.get(root.tag.rpartition("}")[2])
    if names is None:
        raise _unknown()
    divisor_name, offset_name = names
    divisor = parse_number(_text(root, divisor_name), f"sidecar's {divisor_name}")
    offsets = {
        element.get("band_id"): parse_number(element.text, f"sidecar's {offset_name}")
        for element in root.iter(offset_name)
    }
    baseline = parse_number(_text(root, "PROCESSING_BASELINE"), "sidecar's PROCESSING_BASELINE")
    if not divisor > 0 or (baseline >= OFFSETS_SINCE and not offsets):
        raise MediaUnreadable(
            f"The sidecar is incomplete: processing baseline {baseline:05.2f} with {divisor_name} {divisor:g} and "
            f"{len(offsets)} values of {offset_name}."
        )
    ids = dict(enumerate(_SENTINEL2_BANDS))
    if offsets and not {str(i) for i in ids} >= set(offsets):
        raise MediaUnreadable(f"The sidecar's {offset_name} names bands that Sentinel-2 does not have.")
    return {
        canonical(name): Declaration(1 / divisor, offsets.get(str(i), 0.0) / divisor, _NODATA)
        for i, name in ids.items()
        if not offsets or str(i) in offsets
    }


def _text(root: ElementTree.Element, name: str) -> str:
    found = next(root.iter(name), None)
    if found is None or not found.text:
        raise MediaUnreadable(f"The sidecar is incomplete: it has no {name}.")
    return found.text


def _landsat(document: Mapping[str, Any]) -> dict[str, Declaration]:
    product = _part(document, "LANDSAT_METADATA_FILE", missing=_unknown())
    attributes = _part(product, "IMAGE_ATTRIBUTES")
    surface = str(_part(product, "PRODUCT_CONTENTS").get("PROCESSING_LEVEL", "")).startswith("L2")
    group = "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS" if surface else "LEVEL1_RADIOMETRIC_RESCALING"
    sun = 1.0 if surface else _sun(parse_number(attributes.get("SUN_ELEVATION"), "SUN_ELEVATION"))
    if sun <= 0:
        raise InvalidInput("The sidecar's sun elevation is below the horizon, so reflectance is undefined.")
    sensor = named_sensor([str(attributes.get("SPACECRAFT_ID"))])
    parameters = _part(product, group)
    bands: dict[str, Declaration] = {}
    for key, value in parameters.items():
        if found := re.fullmatch(r"REFLECTANCE_MULT_BAND_(\d+)", key):
            code, add = f"B{int(found[1])}", f"REFLECTANCE_ADD_BAND_{found[1]}"
            scale = parse_number(value, f"sidecar's {key}")
            offset = parse_number(parameters.get(add), f"sidecar's {add}")
            declared = Declaration(scale / sun, offset / sun, _NODATA)
            known = sensor.bands.get(code.lower()) if sensor else None
            names = (code, f"SR_{code}", *(known.kinds if known else ()))
            bands |= dict.fromkeys(map(canonical, names), declared)
    if not bands:
        raise MediaUnreadable(f"The sidecar is incomplete: its {group} has no REFLECTANCE_MULT_BAND_x.")
    return bands


def _landsat_acquired(document: Mapping[str, Any]) -> datetime | None:
    """Return the time of the scene's centre: `DATE_ACQUIRED` (2020-01-27) at `SCENE_CENTER_TIME` (07:02:33.12Z)."""
    attributes = document["LANDSAT_METADATA_FILE"]["IMAGE_ATTRIBUTES"]
    return parse_time(f"{attributes.get('DATE_ACQUIRED')}T{attributes.get('SCENE_CENTER_TIME')}")


def _sun(elevation: float) -> float:
    """Return the sine of the sun's elevation in degrees; raise `MediaUnreadable` for one that is not finite."""
    if not math.isfinite(elevation):
        raise MediaUnreadable(f"The sidecar's SUN_ELEVATION is {elevation:g}, not a finite number of degrees.")
    return math.sin(math.radians(elevation))


def _part(document: Mapping[str, Any], name: str, *, missing: MediaUnreadable | None = None) -> Mapping[str, Any]:
    part = document.get(name)
    if not isinstance(part, dict):
        raise missing or MediaUnreadable(f"The sidecar is incomplete: it has no {name}.")
    return part


def _unknown() -> MediaUnreadable:
    return MediaUnreadable(
        "The sidecar has an unknown format; supported are MTD_MSIL1C.xml and MTD_MSIL2A.xml of Sentinel-2 and "
        "*_MTL.json of Landsat Collection 2."
    )
