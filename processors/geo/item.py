"""What a STAC item says of the scene's files: their bands' names, and what the numbers mean.

Understands STAC 1.0 (`eo:bands`, `raster:bands`) and 1.1 (`bands`). Assets are matched with the files that the request
gives; no address in the item is ever opened.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.geo.bands import canonical
from penstock.processors.geo.documents import moment, number, parse_json, read_text
from penstock.processors.geo.radiometry import Said

_WHAT = "STAC item"

#: Earth Search's `sentinel-2-l2a` gives an offset of -0.1 also for files in whose numbers it is included.
_OFFSET_APPLIED = ("earthsearch:boa_offset_applied", "sentinel:boa_offset_applied")


@dataclass(frozen=True, slots=True)
class AssetBand:
    """A band of an asset: its names, the most specific one first, and what is said of it."""

    names: tuple[str, ...]
    said: Said


@dataclass(frozen=True, slots=True)
class Item:
    """The assets of an item that have bands."""

    #: By the last part of the address, as uploads would call it: the bands of each asset of that name.
    files: Mapping[str, list[tuple[AssetBand, ...]]]
    #: When the scene was taken; None where the item gives an interval, or no time with its zone.
    taken: datetime | None = None

    def of_file(self, reference: str) -> tuple[AssetBand, ...]:
        """Return the bands of the asset with this media reference's file name, in order; empty if there is none.

        Raises `InvalidInput` where several assets have that name and not all say the same.
        """
        assets = self.files.get(name := file_name(reference), [])
        if len({tuple(band.said for band in bands) for bands in assets}) > 1:
            raise InvalidInput(f"The STAC item says several things of files called {name}: leave other assets out.")
        return assets[0] if assets else ()

    def of_band(self, names: Sequence[str]) -> Said:
        """Return what is said of the band of one of these names, for a file that is no asset.

        Raises `InvalidInput` where no asset has such a band, or several have that do not say the same of it.
        """
        wanted = set(map(canonical, names))
        every = [band for assets in self.files.values() for bands in assets for band in bands]
        said = {band.said for band in every if wanted & set(map(canonical, band.names))}
        if len(said) == 1:
            return said.pop()
        called = " or ".join(names) or "(unnamed)"
        raise InvalidInput(
            f"The STAC item says {'several things' if said else 'nothing'} of the band called {called}: give the file "
            f"the name that its asset has ({', '.join(list(self.files)[:20])}), or name its bands as the item does."
        )


def read_item(path: Path) -> Item:
    """Read a STAC item. Raises `MediaUnreadable` for any other document, `MediaTooLarge` for a huge one."""
    item = parse_json(read_text(path, _WHAT), _WHAT)
    assets, properties = item.get("assets"), item.get("properties")
    if item.get("type") != "Feature" or not isinstance(assets, dict) or not isinstance(properties, dict):
        raise MediaUnreadable("The STAC item is none: it is a GeoJSON feature with `properties` and `assets`.")
    applied = any(properties.get(name) is True for name in _OFFSET_APPLIED)
    files: dict[str, list[tuple[AssetBand, ...]]] = {}
    for key, asset in assets.items():
        if isinstance(asset, dict) and isinstance(asset.get("href"), str):
            files.setdefault(file_name(asset["href"]), []).append(tuple(_bands(key, asset, applied=applied)))
    return Item(files, moment(properties.get("datetime")))


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
        yield AssetBand(texts, _said(key, {**asset, **band}, applied=applied))


def _said(key: str, fields: Mapping[str, Any], *, applied: bool) -> Said:
    def find(*names: str) -> float | None:
        value = next((fields[name] for name in names if fields.get(name) is not None), None)
        return None if value is None else number(value, f"STAC item's {names[-1]} of the asset {key}")

    scale, offset, nodata = find("raster:scale", "scale"), find("raster:offset", "offset"), find("nodata")
    if scale is None and offset is None:
        return Said(nodata=nodata)
    return Said(1.0 if scale is None else scale, 0.0 if applied or offset is None else offset, nodata)


def _objects(asset: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    values = asset.get(name)
    return [value if isinstance(value, dict) else {} for value in values] if isinstance(values, list) else []


def file_name(address: str) -> str:
    """Return the last part of an address's path, in the letters that names of uploads have."""
    name = unquote(re.split(r"[?#]", address)[0].rstrip("/")).rpartition("/")[2]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "_", plain)
