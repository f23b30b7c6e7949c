"""What a product's own metadata file says of its numbers and time: Sentinel-2 `MTD_MSIL*.xml`, Landsat `*_MTL.json`.

Sources: Sentinel-2 Products Specification Document (`RADIO_ADD_OFFSET`, `BOA_ADD_OFFSET` since processing baseline
04.00); Landsat 8-9 Collection 2 Data Format Control Book and Landsat 7 Data Users Handbook (`REFLECTANCE_MULT_BAND_x`,
and for Level 1 the division by the sine of the sun's elevation).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.geo.bands import canonical
from penstock.processors.geo.documents import moment, number, parse_json, parse_xml, read_text
from penstock.processors.geo.radiometry import Said

_WHAT = "sidecar"

#: In both products 0 is no data, and is looked for before any offset is added.
_NODATA = 0.0

#: Root element -> the elements that hold the divisor and a band's offset.
_SENTINEL2 = {
    "Level-1C_User_Product": ("QUANTIFICATION_VALUE", "RADIO_ADD_OFFSET"),
    "Level-2A_User_Product": ("BOA_QUANTIFICATION_VALUE", "BOA_ADD_OFFSET"),
}
#: By `band_id`.
_SENTINEL2_BANDS = ("B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12")
_OFFSETS_SINCE = 4.0

#: Landsat 8 and 9, and those before: band number -> common name.
_OLI = {1: "coastal", 2: "blue", 3: "green", 4: "red", 5: "nir08", 6: "swir16", 7: "swir22", 8: "pan", 9: "cirrus"}
_TM = {1: "blue", 2: "green", 3: "red", 4: "nir08", 5: "swir16", 7: "swir22", 8: "pan"}


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a product says of its bands, by canonical band name."""

    bands: Mapping[str, Said]
    #: When the scene was taken; None where the document gives no time with its zone.
    taken: datetime | None = None

    def of(self, names: Sequence[str]) -> Said:
        """Return what it says of the band of these names, the first that it knows.

        A band that it does not know is taken as the rest, where it says the same of all; otherwise `InvalidInput`.
        """
        known = next((self.bands[key] for key in map(canonical, names) if key in self.bands), None)
        if known is not None:
            return known
        if len(said := set(self.bands.values())) == 1:
            return said.pop()
        raise InvalidInput(
            f"The sidecar tells something else of each band, and the band called {' or '.join(names)} is none that it "
            f"knows: {', '.join(self.bands)}. Name the bands of the files with `files[].bands`."
        )


def read_sidecar(path: Path) -> Sidecar:
    """Read a product's metadata. Raises `MediaUnreadable` for any other document, `MediaTooLarge` for a huge one."""
    text = read_text(path, _WHAT)
    if text.lstrip().startswith("<"):
        root = parse_xml(text, _WHAT)
        return Sidecar(_sentinel2(root), moment(root.findtext(".//PRODUCT_START_TIME")))
    if text.lstrip().startswith("{"):
        document = parse_json(text, _WHAT)
        return Sidecar(_landsat(document), _landsat_taken(document))
    raise _unknown()


def _sentinel2(root: ElementTree.Element) -> dict[str, Said]:
    names = _SENTINEL2.get(root.tag.rpartition("}")[2])
    if names is None:
        raise _unknown()
    divisor_name, offset_name = names
    divisor = number(_text(root, divisor_name), f"sidecar's {divisor_name}")
    offsets = {
        element.get("band_id"): number(element.text, f"sidecar's {offset_name}") for element in root.iter(offset_name)
    }
    baseline = number(_text(root, "PROCESSING_BASELINE"), "sidecar's PROCESSING_BASELINE")
    if not divisor > 0 or (baseline >= _OFFSETS_SINCE and not offsets):
        raise MediaUnreadable(
            f"The sidecar is of processing baseline {baseline:05.2f} with {divisor_name} {divisor:g} and "
            f"{len(offsets)} values of {offset_name}: it is incomplete."
        )
    ids = dict(enumerate(_SENTINEL2_BANDS))
    if offsets and not {str(i) for i in ids} >= set(offsets):
        raise MediaUnreadable(f"The sidecar's {offset_name} names bands that Sentinel-2 does not have.")
    return {
        canonical(name): Said(1 / divisor, offsets.get(str(i), 0.0) / divisor, _NODATA)
        for i, name in ids.items()
        if not offsets or str(i) in offsets
    }


def _text(root: ElementTree.Element, name: str) -> str:
    found = next(root.iter(name), None)
    if found is None or not found.text:
        raise MediaUnreadable(f"The sidecar has no {name}: it is incomplete.")
    return found.text


def _landsat(document: Mapping[str, Any]) -> dict[str, Said]:
    product = _part(document, "LANDSAT_METADATA_FILE", missing=_unknown())
    attributes = _part(product, "IMAGE_ATTRIBUTES")
    surface = str(_part(product, "PRODUCT_CONTENTS").get("PROCESSING_LEVEL", "")).startswith("L2")
    group = "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS" if surface else "LEVEL1_RADIOMETRIC_RESCALING"
    sun = 1.0 if surface else _sun(number(attributes.get("SUN_ELEVATION"), "SUN_ELEVATION"))
    if sun <= 0:
        raise InvalidInput("The sidecar's sun stands below the horizon: there is no reflectance.")
    common = _OLI if str(attributes.get("SPACECRAFT_ID")) in ("LANDSAT_8", "LANDSAT_9") else _TM
    parameters = _part(product, group)
    bands: dict[str, Said] = {}
    for key, value in parameters.items():
        if found := re.fullmatch(r"REFLECTANCE_MULT_BAND_(\d+)", key):
            band, add = int(found[1]), f"REFLECTANCE_ADD_BAND_{found[1]}"
            scale, offset = number(value, f"sidecar's {key}"), number(parameters.get(add), f"sidecar's {add}")
            said = Said(scale / sun, offset / sun, _NODATA)
            bands |= dict.fromkeys(map(canonical, _landsat_names(band, common)), said)
    if not bands:
        raise MediaUnreadable(f"The sidecar's {group} has no REFLECTANCE_MULT_BAND_x: it is incomplete.")
    return bands


def _landsat_taken(document: Mapping[str, Any]) -> datetime | None:
    """Return the scene's middle, of a document in which bands were found: `2020-01-27`, `07:02:33.1234560Z`."""
    attributes = document["LANDSAT_METADATA_FILE"]["IMAGE_ATTRIBUTES"]
    return moment(f"{attributes.get('DATE_ACQUIRED')}T{attributes.get('SCENE_CENTER_TIME')}")


def _sun(elevation: float) -> float:
    """Return the sine of the sun's elevation in degrees; raise `MediaUnreadable` for one that is not finite."""
    if not math.isfinite(elevation):
        raise MediaUnreadable(f"The sidecar's SUN_ELEVATION is {elevation:g}, not a number of degrees.")
    return math.sin(math.radians(elevation))


def _landsat_names(band: int, common: Mapping[int, str]) -> Iterable[str]:
    return (f"B{band}", f"SR_B{band}", *filter(None, (common.get(band),)))


def _part(document: Mapping[str, Any], name: str, *, missing: MediaUnreadable | None = None) -> Mapping[str, Any]:
    part = document.get(name)
    if not isinstance(part, dict):
        raise missing or MediaUnreadable(f"The sidecar has no {name}: it is incomplete.")
    return part


def _unknown() -> MediaUnreadable:
    return MediaUnreadable(
        "The sidecar is none of those that are understood: MTD_MSIL1C.xml or MTD_MSIL2A.xml of Sentinel-2, "
        "*_MTL.json of Landsat Collection 2."
    )
