"""Bands of a STAC asset: their names and their declared radiometry. Pure.

STAC 1.0 lists bands in `eo:bands` and `raster:bands`, one entry for each band of the file (Raster extension 1.1); STAC
1.1 has `bands`, whose entries share the fields of the asset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from penstock.errors import InvalidInput
from penstock.processors.geo.read.band_names import canonical
from penstock.processors.geo.read.bands import bands_in_words
from penstock.processors.geo.read.metadata import parse_number
from penstock.processors.geo.read.radiometry import Declaration

#: First processing baseline of Sentinel-2 whose numbers have an offset of -1000 (Sentinel-2 Products Specification
#: Document 14, `RADIO_ADD_OFFSET` and `BOA_ADD_OFFSET`).
OFFSETS_SINCE: Final = 4.0
#: Radiometry of Sentinel-2's reflectance, before and since that baseline.
_BEFORE: Final = Declaration(1e-4, 0.0, 0.0)
_SINCE: Final = Declaration(1e-4, -0.1, 0.0)
_SENTINEL2_BANDS: Final = frozenset(f"b{number}" for number in (*range(1, 13), "8a"))
#: Property of a STAC item with the baseline: Planetary Computer and Earth Search 1, and Earth Search 0.
_BASELINES: Final = ("s2:processing_baseline", "sentinel:processing_baseline", "sentinel2:processing_baseline")
#: Baselines as numbers are below; `N0511` may be the number 511.
_BASELINES_END: Final = 100
_APPLIED: Final = "boa_offset_applied"
#: Part of the media types of HDF4 and HDF5.
_HDF: Final = "x-hdf"


@dataclass(frozen=True, slots=True)
class AssetBand:
    """A band of an asset: its names, most specific first, and its declared radiometry."""

    names: tuple[str, ...]
    declared: Declaration
    #: True if the band's own entry declares radiometry, False if the declaration is that of all bands of the asset.
    own: bool = False
    #: The reason why the declaration of the asset's bands is not usable; empty if it is.
    unclear: str = ""
    #: True if the radiometry follows from the processing baseline of Sentinel-2.
    by_baseline: bool = False
    #: The reason why the band needs a scale from elsewhere: only other bands of the asset have one; empty if not.
    lacking: str = ""


@dataclass(frozen=True, slots=True)
class Sentinel2Processing:
    """Processing of a Sentinel-2 item, as far as its properties tell."""

    #: Processing baseline, such as 5.09; None if unknown.
    baseline: float | None = None
    #: True if the item says that its numbers include the offset, False if it says that they do not.
    applied: bool | None = None
    #: Name and value of a property that should be a baseline and is none; None if all can be read.
    unread: tuple[str, str] | None = None

    @property
    def declared(self) -> Declaration | None:
        """Return the radiometry of the reflectance bands; None if the properties do not tell."""
        if self.applied:
            return _BEFORE
        if self.baseline is None:
            return None
        return _SINCE if self.baseline >= OFFSETS_SINCE else _BEFORE


def sentinel2_processing(properties: Mapping[str, Any], asset: Mapping[str, Any]) -> Sentinel2Processing:
    """Return what an asset and the item's properties tell about Sentinel-2's processing; the asset comes first.

    Earth Search has `earthsearch:boa_offset_applied` or `sentinel:boa_offset_applied`; any prefix or none counts, and
    the texts `true` and `false` too.
    """
    flags = (
        _flag(value)
        for fields in (asset, properties)
        for name, value in fields.items()
        if name.rpartition(":")[2] == _APPLIED
    )
    applied = next((flag for flag in flags if flag is not None), None)
    of_any = (properties.get(name) for name in ("constellation", "platform"))
    names = (*_BASELINES, *(("processing:version",) if any("sentinel-2" in str(one).lower() for one in of_any) else ()))
    given = ((name, fields[name]) for fields in (asset, properties) for name in names if fields.get(name))
    name, value = next(given, ("", None))
    baseline = _version(value) if name not in _BASELINES else _baseline(value)
    unread = (name, str(value)) if name in _BASELINES and baseline is None else None
    return Sentinel2Processing(baseline, applied, unread)


def _flag(value: Any) -> bool | None:
    match value:
        case bool():
            return value
        case str() if value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        case _:
            return None


def _baseline(value: Any) -> float | None:
    """Return a processing baseline (`04.00`, `N0511`, `5.09`, the number 5.1) as a number; None for anything else."""
    match value:
        case bool():
            return None
        case int() | float() if value < _BASELINES_END:
            text = f"{value:.2f}" if round(value, 2) == value else ""
        case _:
            text = str(value).strip()
    found = re.fullmatch(r"N?(\d{1,2})\.?(\d\d)", text)
    return None if found is None else float(f"{found[1]}.{found[2]}")


def _version(value: Any) -> float | None:
    """Return a processing baseline as `_baseline`, of four digits only: `2.0` is of HLS, and `2.11` of Sen2Cor."""
    return _baseline(value) if re.fullmatch(r"N?\d\d\.?\d\d", str(value).strip()) else None


def asset_bands(key: str, asset: Mapping[str, Any], properties: Mapping[str, Any]) -> Iterator[AssetBand]:
    """Yield the bands that an asset lists, or one that stands for all bands of its file.

    `properties` are those of the item. Raises `MediaUnreadable` for scales, offsets and nodata that are no numbers.
    """
    processing = sentinel2_processing(properties, asset)
    lists = {name: _objects(asset, name, properties) for name in ("bands", "eo:bands", "raster:bands")}
    named = "bands" if lists["bands"] else "eo:bands"
    raster = lists["raster:bands"]
    if _HDF in str(asset.get("type")):  # MODIS: seven bands in `eo:bands`, thirteen in the file and in `raster:bands`
        raster = raster[: max(len(lists[named]), 1)]
    unclear = _unclear(key, named, len(lists[named]), raster)
    each = [
        {name: value for part in parts for name, value in part.items()}
        for parts in zip_longest(*lists.values(), fillvalue={})
    ]
    every = [_declared(key, {**asset, **band}, applied=processing.applied is True) for band in each or [{}]]
    lacking = _lacking(key, every)
    for band, declared in zip(each or [{}], every, strict=True):
        names = [band.get("name"), band.get("eo:common_name"), band.get("common_name")]
        if len(each) <= 1:
            # LP DAAC has each file twice: `B02` at an https address, `s3_B02` at one of S3.
            names += [asset.get("eo:common_name"), key, key.removeprefix("s3_"), _without_extension(key)]
        texts = tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
        by_baseline = len(each) <= 1 and not unclear and declared.scale is None and _is_sentinel2(texts)
        if by_baseline and processing.declared is not None:
            found = processing.declared
            nodata = found.nodata if declared.nodata is None else declared.nodata
            yield AssetBand(texts, Declaration(found.scale, found.offset, nodata), by_baseline=True)
        else:
            own = "" if unclear or declared.scale is not None else lacking
            yield AssetBand(texts, declared, _declares(band), unclear, lacking=own)


def declared_at(bands: Sequence[AssetBand], index: int, name: str, example: str) -> Declaration:
    """Return the declaration of a file's band by its number from 1.

    `name` is that of the file in errors, and `example` a `radiometry` of a request in the model's unit. Raises
    `InvalidInput` if the asset declares the radiometry of other bands, but not of this one.
    """
    band = bands[min(index, len(bands)) - 1]
    if band.unclear:
        raise unclear_bands(band, example)
    if index > len(bands) and any(one.own for one in bands):
        raise InvalidInput(
            f"The STAC item declares the radiometry of {bands_in_words(len(bands))} of {name}, but band {index} is "
            f"needed. Give one entry of `raster:bands` for each band of the file, or in the request e.g. {example}."
        )
    return band.declared


def unclear_bands(band: AssetBand, example: str) -> InvalidInput:
    """Return the error for a band whose radiometry the item leaves unclear; `example`: see `declared_at`."""
    return InvalidInput(
        f"{band.unclear or band.lacking} Give each band its entry of `raster:bands`, or give in the request "
        f"e.g. {example}."
    )


def _unclear(key: str, named: str, count: int, raster: Sequence[Mapping[str, Any]]) -> str:
    """Return what is wrong if `raster:bands` does not have the `count` entries of the list `named`; else nothing."""
    if count <= 1 or len(raster) in (0, count) or not any(map(_declares, raster)):
        return ""
    those = "the others" if len(raster) < count else "each"
    return (
        f"The asset {key} of the STAC item has {bands_in_words(count)} in `{named}`, but {len(raster)} in "
        f"`raster:bands`, so that the scale, offset and nodata of {those} are unknown."
    )


def _lacking(key: str, declared: Sequence[Declaration]) -> str:
    """Return what is wrong if some bands of an asset have a scale, and not all; else nothing."""
    scaled = sum(one.scale is not None for one in declared)
    if scaled in (0, len(declared)):
        return ""
    return (
        f"The asset {key} of the STAC item gives a scale for {scaled} of its {bands_in_words(len(declared))}, so that "
        "the scale and offset of the others are unknown."
    )


def _declares(band: Mapping[str, Any]) -> bool:
    fields = ("scale", "raster:scale", "offset", "raster:offset", "nodata")
    return any(band.get(name) is not None for name in fields)


def _is_sentinel2(names: Sequence[str]) -> bool:
    """Return True for a reflectance band such as `B04`, also as `B04_10m`; not for SCL, AOT, WVP and pictures."""
    return any(canonical(name.partition("_")[0]) in _SENTINEL2_BANDS for name in names)


def _declared(key: str, fields: Mapping[str, Any], *, applied: bool) -> Declaration:
    def find(*names: str) -> float | None:
        value = next((fields[name] for name in names if fields.get(name) is not None), None)
        return None if value is None else parse_number(value, f"STAC item's {names[-1]} of the asset {key}")

    scale, offset, nodata = find("raster:scale", "scale"), find("raster:offset", "offset"), find("nodata")
    if scale is None and offset is None:
        return Declaration(nodata=nodata)
    return Declaration(1.0 if scale is None else scale, 0.0 if applied or offset is None else offset, nodata)


def _without_extension(key: str) -> str:
    """Return the key `SR_B2` for `SR_B2.TIF`, as in items of USGS."""
    return key[: -len(".tif")] if key.lower().endswith(".tif") else key


def _objects(asset: Mapping[str, Any], name: str, properties: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of a list of bands. Before STAC 1.0 an entry is the index of one in the properties."""
    values, shared = asset.get(name), properties.get(name)
    entries = values if isinstance(values, list) else []
    known = shared if isinstance(shared, list) else []
    found = [known[at] if isinstance(at, int) and 0 <= at < len(known) else at for at in entries]
    return [entry if isinstance(entry, dict) else {} for entry in found]
