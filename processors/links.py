"""Addresses of the files that a STAC item names. Pure: the worker uses it too, to fetch these files and no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin

#: Characters of an address, as in requests.
_MAX_CHARS = 2048


def asset_links(item: Any, base: str | None) -> dict[str, str]:
    """Return the address of each asset of a STAC item, by the asset's key.

    `base` is the address of the item. Relative addresses are resolved against it if it is public, else against the
    item's link `self`; assets whose address stays relative, or that have none, are left out.
    """
    if not isinstance(item, Mapping) or not isinstance(item.get("assets"), Mapping):
        return {}
    base = base if base is not None and _is_absolute(base) else _self(item)
    found = {str(key): _address(asset, base) for key, asset in item["assets"].items()}
    return {key: address for key, address in found.items() if address is not None and len(address) <= _MAX_CHARS}


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


def _self(item: Mapping[str, Any]) -> str | None:
    links = item.get("links")
    for link in links if isinstance(links, list) else []:
        if isinstance(link, Mapping) and link.get("rel") == "self" and isinstance(link.get("href"), str):
            return str(link["href"]) if _is_absolute(link["href"]) else None
    return None


def _is_absolute(address: str) -> bool:
    return address.startswith(("https://", "http://", "s3://"))
