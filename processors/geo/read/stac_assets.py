"""Choice of a STAC item's assets: the files with the bands that a model needs."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidInput, Issue, MissingBands
from penstock.processors.geo.options import Band
from penstock.processors.geo.read.bands import canonical
from penstock.processors.geo.read.stac_bands import AssetBand
from penstock.processors.geo.read.stac_item import StacItem, file_name, is_data
from penstock.processors.links import asset_links

_MOST_NAMED = 30


def choose_assets(
    item: StacItem, base: str | None, needed: Sequence[Band], requested: Sequence[str | int] | None
) -> tuple[str, ...]:
    """Return the addresses of the files that hold the needed bands, each once, in the order of the bands.

    A band is looked up by its name, then by its synonyms, as in files; `requested` names replace them. An asset of the
    band alone is preferred to one of several bands, and a GeoTIFF to other formats. Raises `MissingBands` if no asset
    has a band, and `InvalidInput` for an asset without an address.
    """
    wanted: list[tuple[str, ...]] = [(name,) for name in requested or () if isinstance(name, str)]
    if requested and len(wanted) != len(requested):
        raise InvalidInput(
            "A scene of a STAC item has its bands by name: numbers in `bands` have no meaning.",
            errors=[Issue("/input/bands", "must be names, because `stac` names the files")],
        )
    names = wanted or [(band.name, *band.synonyms) for band in needed]
    links = asset_links(item.document, base)
    chosen = [_asset(item, each) for each in names]
    addresses = [links.get(key) for key in chosen]
    for key, address in zip(chosen, addresses, strict=True):
        if address is None:
            raise _without_address(key)
    return tuple(dict.fromkeys(address for address in addresses if address is not None))


def _asset(item: StacItem, names: Sequence[str]) -> str:
    """Return the key of the best asset with a band of one of the names, of which the first are better."""
    for name in names:
        found = [key for key, bands in item.bands.items() if _has(bands, name) and is_data(item.assets[key])]
        if found:
            return min(found, key=lambda key: _rank(item, key))
    listed = ", ".join(list(item.bands)[:_MOST_NAMED])
    raise MissingBands(
        f"No asset of the STAC item has the band {names[0]}"
        + (f" (or {', '.join(names[1:])})" if names[1:] else "")
        + f"; the item has {listed}.",
        errors=[Issue("/input/stac", f"has no band {names[0]}")],
    )


def _has(bands: Sequence[AssetBand], name: str) -> bool:
    return any(canonical(name) in map(canonical, band.names) for band in bands)


def _rank(item: StacItem, key: str) -> tuple[int, int, int]:
    kind, address = str(item.assets[key].get("type", "")), item.assets[key]["href"]
    # LP DAAC has each file twice: at an https address, and in a store that only its own region reads.
    return len(item.bands[key]), 0 if kind.startswith("image/tiff") else 1, int(address.startswith("s3://"))


def metadata_address(item: StacItem, base: str | None, chosen: Sequence[str]) -> str | None:
    """Return the address of an item's own Landsat metadata (`*_MTL.json`), if a chosen asset declares no scale.

    USGS publishes its items without scales, and the metadata as the asset `MTL.json`.
    """
    declared = [item.declared(address, 1) for address in chosen]
    if all(one is not None and one.scale is not None for one in declared):
        return None
    for key, address in asset_links(item.document, base).items():
        if key.lower() == "mtl.json" or file_name(address).lower().endswith("_mtl.json"):
            return address
    return None


def mask_address(item: StacItem, base: str | None, key: str) -> str:
    """Return the address of an asset with a mask. Raises `InvalidInput` for an asset without one."""
    address = asset_links(item.document, base).get(key)
    if address is None:
        raise _without_address(key)
    return address


def _without_address(key: str) -> InvalidInput:
    return InvalidInput(
        f"The asset {key} of the STAC item has a relative address, and the item has no address of its own: "
        "name the item by its URL, or give it an absolute link `self`.",
        errors=[Issue("/input/stac", "has relative addresses")],
    )
