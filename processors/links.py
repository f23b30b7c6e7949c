"""Addresses of the files that STAC items name. Pure: the worker uses it too, to fetch these files and no others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

#: Characters of an address, as in requests.
_MAX_CHARS = 2048
#: Further addresses of one file that are tried, at most.
_MAX_ALTERNATES = 10


@dataclass(frozen=True, slots=True)
class LinkedFile:
    """The file of an asset, as its STAC item describes it."""

    #: Further addresses of the same file: `alternate` of the alternate-assets extension.
    alternates: tuple[str, ...] = ()
    #: `file:size` and `file:checksum`, a multihash in hexadecimal, of the file extension.
    size_bytes: int | None = None
    checksum: str | None = None


def asset_links(item: Any, base: str | None) -> dict[str, str]:
    """Return the address of each asset of a STAC item, by the asset's key.

    `base` is the address of the item. Relative addresses are resolved against it if it is public, else against the
    item's link `self`. An asset whose own address stays relative has its first alternate one; assets without any
    address are left out.
    """
    return {key: found[0] for key, found in _addresses(item, base).items()}


def linked_files(item: Any, base: str | None) -> dict[str, LinkedFile]:
    """Return the files of a STAC item's assets, by the addresses of `asset_links`."""
    found = dict[str, LinkedFile]()
    for key, (address, *alternates) in _addresses(item, base).items():
        size, checksum = (item["assets"][key].get(f"file:{name}") for name in ("size", "checksum"))
        found[address] = LinkedFile(
            tuple(alternates),
            size if isinstance(size, int) and not isinstance(size, bool) else None,
            checksum if isinstance(checksum, str) else None,
        )
    return found


def collection_items(document: Any, base: str | None) -> list[Mapping[str, Any]] | None:
    """Return the items of a STAC collection of items (a GeoJSON FeatureCollection); None for another document.

    `base` is the address of the collection. An item without an absolute link `self` gets the collection's address as
    one, so that its relative addresses have the same meaning when it stands alone.
    """
    if not isinstance(document, Mapping) or document.get("type") != "FeatureCollection":
        return None
    features = document.get("features")
    own = base if base is not None and _is_absolute(base) else item_address(document)
    listed = features if isinstance(features, list) else []
    return [_located(item, own) for item in listed if isinstance(item, Mapping)]


def item_address(item: Mapping[str, Any]) -> str | None:
    """Return the absolute link `self` of a STAC item or collection; None if there is none."""
    for link in _links(item):
        if link.get("rel") == "self" and isinstance(link.get("href"), str):
            return str(link["href"]) if _is_absolute(link["href"]) else None
    return None


def has_further_pages(collection: Mapping[str, Any]) -> bool:
    """Return True if a collection of items is one page of several.

    Some servers link to an empty page after the last one: a stated number of items is more reliable.
    """
    context = collection.get("context")
    counts = [collection.get("numberMatched"), context.get("matched") if isinstance(context, Mapping) else None]
    features = collection.get("features")
    known = [count for count in counts if isinstance(count, int)]
    if known and isinstance(features, list):
        return max(known) > len(features)
    return any(link.get("rel") == "next" for link in _links(collection))


def _located(item: Mapping[str, Any], address: str | None) -> Mapping[str, Any]:
    if address is None or item_address(item) is not None:
        return item
    others = [link for link in _links(item) if link.get("rel") != "self"]
    return {**item, "links": [*others, {"rel": "self", "href": address}]}


def _links(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    links = document.get("links")
    return [link for link in links if isinstance(link, Mapping)] if isinstance(links, list) else []


def _addresses(item: Any, base: str | None) -> dict[str, list[str]]:
    """Return the addresses of each asset, its own one first; assets without any are left out."""
    if not isinstance(item, Mapping) or not isinstance(item.get("assets"), Mapping):
        return {}
    base = base if base is not None and _is_absolute(base) else item_address(item)
    found = {key: _of_asset(asset, base) for key, asset in item["assets"].items()}
    return {key: addresses for key, addresses in found.items() if addresses}


def _of_asset(asset: Any, base: str | None) -> list[str]:
    others = asset.get("alternate") if isinstance(asset, Mapping) else None
    listed = list(others.values()) if isinstance(others, Mapping) else []
    found = [_address(each, base) for each in (asset, *listed[:_MAX_ALTERNATES])]
    return list(dict.fromkeys(address for address in found if address is not None and len(address) <= _MAX_CHARS))


def _address(asset: Any, base: str | None) -> str | None:
    href = asset.get("href") if isinstance(asset, Mapping) else None
    if not isinstance(href, str) or not href:
        return None
    if "://" in href:
        return href
    return None if base is None else _joined(base, href)


def _joined(base: str, href: str) -> str | None:
    """Return a relative address as an absolute one. `urljoin` knows no `s3`, which has paths like `http`."""
    scheme, _, rest = base.partition("://")
    try:
        return f"{scheme}://" + urljoin(f"http://{rest}", href).partition("://")[2]
    except ValueError:
        return None


def _is_absolute(address: str) -> bool:
    return address.startswith(("https://", "http://", "s3://"))
