"""STAC item of a scene: band names and radiometry of its files.

Supports STAC 1.0 (`eo:bands`, `raster:bands`) and 1.1 (`bands`). Assets are matched with the files of the request, or
chosen as the files of the scene (`stac_assets`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.processors.geo.read.band_names import canonical
from penstock.processors.geo.read.metadata import parse_json, parse_time, read_text
from penstock.processors.geo.read.radiometry import Declaration
from penstock.processors.geo.read.stac_bands import (
    OFFSETS_SINCE,
    AssetBand,
    asset_bands,
    declared_at,
    sentinel2_processing,
    unclear_bands,
)

_WHAT = "STAC item"

#: Characters of a value in a note, at most.
SHOWN_CHARS = 40
#: Properties with the time of an item, and with its interval if `datetime` is null.
_TIMES = ("datetime", "start_datetime", "end_datetime")
#: Properties with the name of a platform.
_PLATFORMS = ("platform", "constellation", "eo:platform")
#: Roles and keys of assets that are pictures of the scene, and no data.
_PICTURE_ROLES = frozenset({"visual", "overview", "thumbnail", "metadata", "browse"})
_PICTURE_KEYS = frozenset({"visual", "overview", "thumbnail", "browse", "preview", "pvi", "tci", "rendered_preview"})


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
    #: True if the first time is after the last, as the item gives them.
    backwards: bool = False
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
        return tuple(_merged(same) for same in zip(*assets, strict=False))

    def names_of(self, reference: str) -> tuple[tuple[str, ...], ...]:
        """Return the names of the bands of `of_file`, also if their radiometry differs."""
        return tuple(_merged(same).names for same in zip(*self.files.get(file_name(reference), []), strict=False))

    def scaling_of(self, reference: str) -> Declaration | None:
        """Return the first declaration with a scale in the assets of a file; None if there is none."""
        every = (band.declared for bands in self.files.get(file_name(reference), []) for band in bands)
        return next((declared for declared in every if declared.scale is not None), None)

    def declared(self, reference: str, index: int, example: str = "`radiometry`") -> Declaration | None:
        """Return the declaration of a band of an asset's file by its number from 1; None if the file is no asset.

        `example` is a `radiometry` of a request, for errors. Raises `InvalidInput` if the item leaves the radiometry of
        this band unclear.
        """
        bands = self.of_file(reference)
        return declared_at(bands, index, file_name(reference), example) if bands else None

    def lacking(self, reference: str, index: int, names: Sequence[str], synonyms: Sequence[str]) -> AssetBand | None:
        """Return the band whose scale the item gives for other bands of its asset only; None if there is none.

        The band is that of `declared`, or of `of_band` for a file that is no asset.
        """
        bands = self.of_file(reference)
        found = bands[index - 1 : index] if bands else next(self._named(names, synonyms), [])
        return next((band for band in found if band.lacking), None)

    def _named(self, names: Sequence[str], synonyms: Sequence[str]) -> Iterator[list[AssetBand]]:
        """Yield the bands with one of the names, then those with each synonym; nothing for those that no band has."""
        data = {key: bands for key, bands in self.bands.items() if is_data(self.assets[key])}
        every = [band for key, bands in data.items() if not is_picture(key) for band in bands]
        for some in (names, *([synonym] for synonym in synonyms)):
            wanted = set(map(canonical, some))
            if found := [band for band in every if wanted & set(map(canonical, band.names))]:
                yield found

    def asset_of(self, reference: str) -> Mapping[str, Any] | None:
        """Return the asset with the file name of a media reference; None if there is none."""
        name = file_name(reference)
        return next((asset for asset in self.assets.values() if file_name(asset["href"]) == name), None)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The item's properties."""
        found: Mapping[str, Any] = self.document.get("properties", {})
        return found

    def of_band(self, names: Sequence[str], synonyms: Sequence[str] = (), example: str = "`radiometry`") -> Declaration:
        """Return the declaration of a band by its names, for a file that is not an asset of the item.

        Where the item has none of the names, the first of the `synonyms` that it has counts, as in the choice of its
        assets. Raises `InvalidInput` if no asset has the band, or if several have it with different radiometry.
        """
        declared = set[Declaration]()
        for found in self._named(names, synonyms):
            if all(band.unclear for band in found):
                raise unclear_bands(found[0], example)
            declared = {band.declared for band in found if not band.unclear}
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
    files: dict[str, list[tuple[AssetBand, ...]]] = {}
    named = {key: one for key, one in assets.items() if isinstance(one, dict) and isinstance(one.get("href"), str)}
    bands = {key: tuple(asset_bands(key, asset, properties)) for key, asset in named.items()}
    for key, asset in named.items():
        files.setdefault(file_name(asset["href"]), []).append(bands[key])
    times = {name: parse_time(properties.get(name)) for name in _TIMES}
    unread = {name: properties[name] for name in _TIMES if times[name] is None and properties.get(name) is not None}
    acquired, *ends = times.values()
    interval = tuple(end for end in ends if end is not None)
    both = len(interval) == len(ends)
    backwards = both and interval[0] > interval[-1]
    interval = interval if acquired is None and both else ()
    return StacItem(files, acquired, item, named, bands, interval, backwards, unread)


def is_data(asset: Mapping[str, Any]) -> bool:
    """Return False for an asset that is a picture of the scene by its roles."""
    roles = asset.get("roles")
    return not (isinstance(roles, list) and _PICTURE_ROLES & {role for role in roles if isinstance(role, str)})


def is_picture(key: str) -> bool:
    """Return True for an asset that is a true-colour picture by its key, such as `visual` or `TCI_10m`."""
    return key.lower().partition("_")[0] in _PICTURE_KEYS


def item_notes(item: StacItem, used: Sequence[Declaration]) -> Iterator[str]:
    """Yield what was assumed from an item, or is contradictory in it; `used` are the declarations of the used bands."""
    processing = sentinel2_processing(item.properties, {})
    every = [band for bands in item.bands.values() for band in bands]
    assumed = {band.declared for band in every if band.by_baseline} & set(used)
    baseline = "unknown" if processing.baseline is None else f"{processing.baseline:05.2f}"
    for declared in sorted(assumed, key=lambda one: one.offset):
        said = ", and that its numbers include the offset" if processing.applied else ""
        yield (
            f"The STAC item gives no scale. Scale {declared.scale:g} and offset {declared.offset:g} were used, because "
            f"it is of Sentinel-2 and says that its processing baseline is {baseline}{said}."
        )
    unread = (sentinel2_processing(item.properties, asset).unread for asset in item.assets.values())
    for name, value in dict.fromkeys(one for one in unread if one is not None):
        yield (
            f"The `{name}` of the STAC item is {value[:SHOWN_CHARS]!r}, which is no processing baseline such as "
            "05.09. It was not used."
        )
    if processing.baseline is not None and processing.baseline < OFFSETS_SINCE and not processing.applied:
        offsets = {declared.offset for declared in used if declared.scale is not None and declared.offset != 0}
        if offsets:
            yield (
                f"The STAC item declares the offset {min(offsets):g}, but Sentinel-2's numbers have none in its "
                f"processing baseline {baseline}. The offset was used; if it is wrong, give `radiometry`."
            )
    if item.backwards:
        start, end = (item.properties[name] for name in _TIMES[1:])
        yield f"The `start_datetime` of the STAC item, {start}, is after its `end_datetime`, {end}."


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a STAC item or a collection of items."""
    return parse_json(read_text(path, _WHAT), _WHAT)


def _merged(same: Sequence[AssetBand]) -> AssetBand:
    """Return the band of assets that are one file, with the names of all."""
    return replace(same[0], names=tuple(dict.fromkeys(name for band in same for name in band.names)))


def file_name(address: str) -> str:
    """Return the file name in a URL or media reference, in the form of upload names."""
    name = unquote(re.split(r"[?#]", address)[0].rstrip("/")).rpartition("/")[2]
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "_", plain)
