"""STAC item of a scene: band names and radiometry of its files.

Supports STAC 1.0 (`eo:bands`, `raster:bands`) and 1.1 (`bands`). Assets are matched with the files of the request, or
chosen as the files of the scene (`stac_assets`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.geo.read.band_names import canonical
from penstock.processors.geo.read.metadata import parse_json, parse_number, parse_time, read_text
from penstock.processors.geo.read.radiometry import Declaration

_WHAT = "STAC item"

#: Properties with the time of an item, and with its interval if `datetime` is null.
_TIMES = ("datetime", "start_datetime", "end_datetime")
#: Properties with the name of a platform.
_PLATFORMS = ("platform", "constellation", "eo:platform")
#: Earth Search's `sentinel-2-l2a` also gives the offset -0.1 for files that already include it.
_OFFSET_APPLIED = ("earthsearch:boa_offset_applied", "sentinel:boa_offset_applied")


@dataclass(frozen=True, slots=True)
class AssetBand:
    """A band of an asset: its names, most specific first, and its declared radiometry."""

    names: tuple[str, ...]
    declared: Declaration


@dataclass(frozen=True, slots=True)
class StacItem:
    """Assets of a STAC item that have bands."""

    #: Bands of each asset, by file name (in the form of upload names).
    files: Mapping[str, list[tuple[AssetBand, ...]]]
    #: Acquisition time; None if the item gives an interval, or no time with a time zone.
    acquired: datetime | None = None
    #: The item itself, its assets, and the bands of each, by the asset's key.
    document: Mapping[str, Any] = field(default_factory=dict)
    assets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bands: Mapping[str, tuple[AssetBand, ...]] = field(default_factory=dict)
    #: First and last time of an item without a single time; empty for others.
    interval: tuple[datetime, ...] = ()
    #: Names and values of the properties that should be times with a time zone, and are not.
    unread: Mapping[str, Any] = field(default_factory=dict)

    @property
    def platforms(self) -> tuple[str, ...]:
        """Names of the platform, the instruments and the collection."""
        properties = self.document.get("properties", {})
        instruments = properties.get("instruments")
        named = [self.document.get("collection"), *(properties.get(name) for name in _PLATFORMS)]
        named += instruments if isinstance(instruments, list) else [instruments]
        return tuple(name for name in named if isinstance(name, str))

    def of_file(self, reference: str) -> tuple[AssetBand, ...]:
        """Return the bands of the asset with the file name of a media reference, in order; empty if there is none.

        Raises `InvalidInput` if several assets have this name but different radiometry.
        """
        assets = self.files.get(name := file_name(reference), [])
        if len({tuple(band.declared for band in bands) for bands in assets}) > 1:
            raise InvalidInput(f"The STAC item has several assets named {name} with different radiometry.")
        return assets[0] if assets else ()

    def of_band(self, names: Sequence[str], synonyms: Sequence[str] = ()) -> Declaration:
        """Return the declaration of a band by its names, for a file that is not an asset of the item.

        Where the item has none of the names, the first of the `synonyms` that it has counts, as in the choice of its
        assets. Raises `InvalidInput` if no asset has the band, or if several have it with different radiometry.
        """
        every = [band for assets in self.files.values() for bands in assets for band in bands]
        declared = set[Declaration]()
        for some in (names, *([synonym] for synonym in synonyms)):
            wanted = set(map(canonical, some))
            declared = {band.declared for band in every if wanted & set(map(canonical, band.names))}
            if len(declared) == 1:
                return declared.pop()
            if declared:
                break
        label = " or ".join(names) or "(unnamed)"
        raise InvalidInput(
            f"The STAC item has {'different' if declared else 'no'} radiometry for the band named {label}: "
            f"name the file like its asset ({', '.join(list(self.files)[:20])}), or use the band names of the item."
        )


def read_stac_item(source: Path | Mapping[str, Any]) -> StacItem:
    """Read a STAC item: a file, or the document itself.

    Raises `MediaUnreadable` for any other document, `MediaTooLarge` for a huge one.
    """
    item = read_document(source) if isinstance(source, Path) else source
    assets, properties = item.get("assets"), item.get("properties")
    if item.get("type") != "Feature" or not isinstance(assets, dict) or not isinstance(properties, dict):
        raise MediaUnreadable("The document is not a STAC item, i.e. a GeoJSON feature with `properties` and `assets`.")
    applied = any(properties.get(name) is True for name in _OFFSET_APPLIED)
    files: dict[str, list[tuple[AssetBand, ...]]] = {}
    named = {key: one for key, one in assets.items() if isinstance(one, dict) and isinstance(one.get("href"), str)}
    bands = {key: tuple(_bands(key, asset, applied=applied)) for key, asset in named.items()}
    for key, asset in named.items():
        files.setdefault(file_name(asset["href"]), []).append(bands[key])
    times = {name: parse_time(properties.get(name)) for name in _TIMES}
    unread = {name: properties[name] for name in _TIMES if times[name] is None and properties.get(name) is not None}
    acquired, *ends = times.values()
    interval = tuple(end for end in ends if end is not None)
    interval = interval if acquired is None and len(interval) == len(ends) else ()
    return StacItem(files, acquired, item, named, bands, interval, unread)


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a STAC item or a collection of items."""
    return parse_json(read_text(path, _WHAT), _WHAT)


def _bands(key: str, asset: Mapping[str, Any], *, applied: bool) -> Iterator[AssetBand]:
    lists = [_objects(asset, name) for name in ("bands", "eo:bands", "raster:bands")]
    each = [
        {name: value for part in parts for name, value in part.items()} for parts in zip_longest(*lists, fillvalue={})
    ]
    for band in each or [{}]:
        names = [band.get("name"), band.get("eo:common_name"), band.get("common_name")]
        if len(each) <= 1:
            names += [asset.get("eo:common_name"), key]
        texts = tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
        yield AssetBand(texts, _declared(key, {**asset, **band}, applied=applied))


def _declared(key: str, fields: Mapping[str, Any], *, applied: bool) -> Declaration:
    def find(*names: str) -> float | None:
        value = next((fields[name] for name in names if fields.get(name) is not None), None)
        return None if value is None else parse_number(value, f"STAC item's {names[-1]} of the asset {key}")

    scale, offset, nodata = find("raster:scale", "scale"), find("raster:offset", "offset"), find("nodata")
    if scale is None and offset is None:
        return Declaration(nodata=nodata)
    return Declaration(1.0 if scale is None else scale, 0.0 if applied or offset is None else offset, nodata)


def _objects(asset: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    values = asset.get(name)
    return [value if isinstance(value, dict) else {} for value in values] if isinstance(values, list) else []


def file_name(address: str) -> str:
    """Return the file name in a URL or media reference, in the form of upload names."""
    name = unquote(re.split(r"[?#]", address)[0].rstrip("/")).rpartition("/")[2]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "_", plain)
