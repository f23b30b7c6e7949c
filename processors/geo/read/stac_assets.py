"""Choice of a STAC item's assets: the files with the bands that a model needs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import InvalidInput, Issue, MissingBands
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.band_identity import SceneBand, identify
from penstock.processors.geo.read.band_names import canonical, named_sensor
from penstock.processors.geo.read.bands import find_places, needed_bands
from penstock.processors.geo.read.stac_bands import AssetBand
from penstock.processors.geo.read.stac_item import StacItem, file_name, is_data
from penstock.processors.links import asset_links

_MOST_NAMED = 30


def choose_assets(
    item: StacItem, base: str | None, needed: Sequence[Band], requested: Sequence[str | int] | None
) -> tuple[str, ...]:
    """Return the addresses of the files that hold the needed bands, each once, in the order of the bands.

    A band is looked up by its names, then by what the bands are, as in files; `requested` names replace them. An asset
    of the band alone is preferred to one of several bands, then the finest resolution, then a GeoTIFF. Raises
    `MissingBands` if no asset has a band, and `InvalidInput` for an asset without an address.
    """
    wanted = [name for name in requested or () if isinstance(name, str)]
    if requested and len(wanted) != len(requested):
        raise InvalidInput(
            "A scene of a STAC item has its bands by name: numbers in `bands` have no meaning.",
            errors=[Issue("/input/bands", "must be names, because `stac` names the files")],
        )
    links = asset_links(item.document, base)
    chosen = [_named_asset(item, name) for name in wanted] or _matching_assets(item, needed)
    addresses = [links.get(key) for key in chosen]
    if without := [key for key in dict.fromkeys(chosen) if key not in links]:
        listed = [{"media": str(item.assets[key].get("href"))} for key in dict.fromkeys(chosen)]
        raise _without_address(item, without[0], f'"files": {json.dumps(listed, ensure_ascii=False)}')
    return tuple(dict.fromkeys(address for address in addresses if address is not None))


def _matching_assets(item: StacItem, needed: Sequence[Band]) -> list[str]:
    """Return the key of the best asset for each band of the model."""
    data = {key: bands for key, bands in item.bands.items() if is_data(item.assets[key])}
    keys = [key for key, bands in data.items() for _ in bands]
    present = [SceneBand(1, None, band.names, file=at) for at, bands in enumerate(data.values()) for band in bands]
    identities = identify(present, named_sensor(item.platforms))
    found = []
    for need in needed_bands(needed):
        _, places = find_places(need, present, identities)
        if not places:
            raise _without_band(item, need.names)
        found.append(min((keys[place] for place in places), key=lambda key: rank(item, key)))
    return found


def _named_asset(item: StacItem, name: str) -> str:
    """Return the key of the best asset with a band of a name."""
    found = [key for key, bands in item.bands.items() if _has(bands, name) and is_data(item.assets[key])]
    if not found:
        raise _without_band(item, (name,))
    return min(found, key=lambda key: rank(item, key))


def _without_band(item: StacItem, names: Sequence[str]) -> MissingBands:
    listed = ", ".join(list(item.bands)[:_MOST_NAMED])
    return MissingBands(
        f"No asset of the STAC item has the band {names[0]}"
        + (f" (or {', '.join(names[1:])})" if names[1:] else "")
        + f"; the item has {listed}.",
        errors=[Issue("/input/stac", f"has no band {names[0]}")],
    )


def _has(bands: Sequence[AssetBand], name: str) -> bool:
    return any(canonical(name) in map(canonical, band.names) for band in bands)


def rank(item: StacItem, key: str) -> tuple[int, float, int, int]:
    """Return the rank of an asset: few bands come before many, then finer pixels, a GeoTIFF, an https address."""
    asset = item.assets[key]
    return (
        len(item.bands[key]),
        _pixel_size(key, asset),
        0 if str(asset.get("type", "")).startswith("image/tiff") else 1,
        # LP DAAC has each file twice: at an https address, and in a store that only its own region reads.
        int(asset["href"].startswith("s3://")),
    )


def _pixel_size(key: str, asset: Mapping[str, Any]) -> float:
    """Return the size of an asset's pixels in metres as it is stated, such as its `gsd`; infinity if it is not."""
    stated: list[Any] = [asset.get("gsd"), asset.get("raster:spatial_resolution")]
    for name in ("bands", "raster:bands", "eo:bands"):
        bands = asset.get(name)
        first = bands[0] if isinstance(bands, list) and bands and isinstance(bands[0], dict) else {}
        stated += [first.get(each) for each in ("gsd", "raster:spatial_resolution", "spatial_resolution")]
    transform, ending = asset.get("proj:transform"), re.search(r"_(\d+)m$", key)
    stated += transform[:1] if isinstance(transform, list) else []
    stated += [int(ending[1])] if ending else []
    sizes = [abs(size) for size in stated if isinstance(size, int | float) and size]
    return float(sizes[0]) if sizes else math.inf


def metadata_address(item: StacItem, base: str | None, chosen: Sequence[str]) -> str | None:
    """Return the address of an item's own Landsat metadata (`*_MTL.json`), if a chosen asset declares no scale.

    USGS publishes its items without scales, and the metadata as the asset `MTL.json`.
    """
    if all(_is_scaled(item, address) for address in chosen):
        return None
    for key, address in asset_links(item.document, base).items():
        if key.lower() == "mtl.json" or file_name(address).lower().endswith("_mtl.json"):
            return address
    return None


def _is_scaled(item: StacItem, address: str) -> bool:
    """Return True if an item declares the scale of a file, False if not, or if the radiometry is unclear."""
    try:
        declared = item.declared(address, 1)
    except InvalidInput:
        return False
    return declared is not None and declared.scale is not None


def mask_address(item: StacItem, base: str | None, key: str) -> str:
    """Return the address of an asset with a mask. Raises `InvalidInput` for an asset without one."""
    address = asset_links(item.document, base).get(key)
    if address is None:
        media = {"media": str(item.assets[key].get("href"))}
        raise _without_address(item, key, f'"mask": {json.dumps(media, ensure_ascii=False)}')
    return address


def _without_address(item: StacItem, key: str, line: str) -> InvalidInput:
    href = str(item.assets[key].get("href"))[:200]
    kind = "names the local file" if href.startswith("/") else "has the relative address"
    return InvalidInput(
        f"The asset {key} of the STAC item {kind} {href!r}, and the item has no address of its own. For files that you "
        f"have, list them beside the item: {line}. For files at the item's provider, name the item by its URL, or give "
        "it an absolute link `self`.",
        errors=[Issue("/input/stac", "has relative addresses")],
    )
