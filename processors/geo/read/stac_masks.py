"""Masks of STAC items: the asset of a kind, and the classes of the Classification extension. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.errors import InvalidInput, Issue
from penstock.processors.geo.mask_kinds import MASK_KINDS, MaskClass, MaskKind, MaskKindName, cloud_probability
from penstock.processors.geo.read.band_names import canonical
from penstock.processors.geo.read.stac_assets import rank
from penstock.processors.geo.read.stac_item import StacItem
from penstock.processors.geo.scene_request import MaskRequest

#: Names of the assets with providers' masks, in the form of `_plain`, by kind. `cloud` is that of Earth Search.
_NAMES: Final[Mapping[MaskKindName, frozenset[str]]] = {
    "scl": frozenset({"scl"}),
    "fmask": frozenset({"fmask"}),
    "qa_pixel": frozenset({"qapixel", "pixelqa"}),
    "cloud_probability": frozenset({"cld", "cldprb", "mskcldprb", "cloudprobability", "cloud"}),
}
_MOST_NAMED: Final = 30
_BITS: Final = 16
_HIGHEST: Final = 2**_BITS - 1
#: Words of classes that are not cloud, though they name it.
_CLEAR: Final = frozenset({"free", "low", "no", "not", "set", "without"})
_NO_DATA: Final = frozenset({"fill", "no data", "nodata"})


def find_mask(item: StacItem | None, request: MaskRequest) -> tuple[MaskKindName, str]:
    """Return the kind of a request's mask and the key of its asset; the kind is that of the request if it has one.

    Raises `InvalidInput` without an item and without such an asset.
    """
    if item is None:
        raise InvalidInput(
            "A mask needs `media` and `kind`, or the scene's STAC item.",
            errors=[Issue("/input/mask", "needs media, because the scene has no stac")],
        )
    for name in _wanted(request):
        found = list(_described(item, request) if name == "classification" else _named(item, _NAMES[name]))
        if found:
            return name, min(found, key=lambda key: rank(item, key))
    wanted, held = request.kind or " or ".join(_wanted(request)), ", ".join(list(item.bands)[:_MOST_NAMED])
    raise InvalidInput(
        f"The STAC item has no asset {wanted}; it has {held}.{_hint(item, request)}",
        errors=[Issue("/input/mask", f"is not in the STAC item: it has no asset {wanted}")],
    )


def _hint(item: StacItem, request: MaskRequest) -> str:
    """Return the mask to request if an asset describes its classes, which a request without a kind does not take."""
    kinds = {key: kind for key, asset in item.assets.items() if (kind := described_kind(asset)) is not None}
    if request.kind is not None or request.threshold is not None or not kinds:
        return ""
    key = min(kinds, key=lambda each: rank(item, each))
    names = [name for name in kinds[key].classes if name not in kinds[key].empty]
    clouds = [name for name in names if "cloud" in name and not _CLEAR & set(name.split())]
    return (
        f" The asset {key} describes the classes {', '.join(names[:_MOST_NAMED])}. Name those that hide the ground, as "
        f'in "mask": {json.dumps({"kind": "classification", "classes": clouds or ["?"]})}.'
    )


def mask_kind(name: MaskKindName, request: MaskRequest, asset: Mapping[str, Any] | None) -> MaskKind:
    """Return the classes of a mask. Raises `InvalidInput` for an asset without usable classes."""
    match name:
        case "cloud_probability":
            assert request.threshold is not None  # noqa: S101  (the request is checked)
            return cloud_probability(request.threshold)
        case "classification":
            found = None if asset is None else described_kind(asset)
            if found is None:
                raise InvalidInput(
                    "A mask of the kind classification needs the asset of its file in the scene's STAC item, with "
                    f"`classification:classes` or `classification:bitfields`. Other kinds: {', '.join(MASK_KINDS)}.",
                    errors=[Issue("/input/mask/kind", "needs an asset with classes in stac")],
                )
            return found
        case _:
            return MASK_KINDS[name]


def described_kind(asset: Mapping[str, Any]) -> MaskKind | None:
    """Return the kind that the Classification extension (1.1 to 2.0) describes; None if the asset has no classes.

    The fields stand in the asset, or in its first band. A bitfield of one bit is a class of its own name; a value of a
    longer one is a class such as `cloud confidence high`. Values of one name in the same bits are one class.
    """
    bands = (asset[name] for name in ("bands", "raster:bands") if isinstance(asset.get(name), list))
    places = [asset, *(band for some in bands for band in some[:1] if isinstance(band, Mapping))]
    classes: dict[str, MaskClass] = {}
    empty: list[str] = []
    for place in places:
        for name, one, is_empty in (*_classes(place), *_bitfields(place)):
            known = classes.setdefault(name, one)
            if (known.offset, known.length) == (one.offset, one.length):
                classes[name] = replace(known, values=tuple(dict.fromkeys((*known.values, *one.values))))
            empty += [name] if is_empty and name not in empty else []
        if classes:
            return MaskKind(classes, tuple(empty), None, _HIGHEST, ("uint8", "uint16"))
    return None


def _wanted(request: MaskRequest) -> Sequence[MaskKindName]:
    if request.kind is not None:
        return (request.kind,)
    if request.threshold is not None:
        return ("cloud_probability",)
    known: list[MaskKindName] = list(MASK_KINDS)
    return known if request.classes is None else [*known, "classification"]


def _named(item: StacItem, names: frozenset[str]) -> Iterator[str]:
    """Yield the keys of the assets with a name. The key `cloud` alone may be of any mask: its title has to say more."""
    for key, bands in item.bands.items():
        found = {_plain(key), *(_plain(name) for band in bands for name in band.names)} & names
        if found - {"cloud"} or (found and "prob" in str(item.assets[key].get("title", "")).lower()):
            yield key


def _plain(name: str) -> str:
    """Return the form in which `SCL_20m`, `scl-jp2` and `s3_SCL` are `scl`, and `QA_PIXEL.TIF` is `qapixel`."""
    text = re.sub(r"(_\d+m)?(-jp2)?(\.tif)?$", "", name.lower())
    return canonical(text.removeprefix("s3_"))


def _described(item: StacItem, request: MaskRequest) -> Iterator[str]:
    """Yield the keys of the assets that describe classes, and most of the requested ones."""
    kinds = {key: kind for key, asset in item.assets.items() if (kind := described_kind(asset)) is not None}
    held = {key: len(kind.classes.keys() & set(request.classes or ())) for key, kind in kinds.items()}
    yield from (key for key, count in held.items() if count == max(held.values()))


def _classes(place: Mapping[str, Any]) -> Iterator[tuple[str, MaskClass, bool]]:
    for entry in _entries(place, "classification:classes"):
        value, name = entry.get("value"), _name(entry)
        if isinstance(value, int) and 0 <= value <= _HIGHEST and name:
            yield name, MaskClass((value,)), entry.get("nodata") is True or name in _NO_DATA


def _bitfields(place: Mapping[str, Any]) -> Iterator[tuple[str, MaskClass, bool]]:
    for field in _entries(place, "classification:bitfields"):
        offset, length = field.get("offset"), field.get("length")
        if not (isinstance(offset, int) and isinstance(length, int) and offset >= 0 and 0 < length <= _BITS - offset):
            continue
        for entry in _entries(field, "classes"):
            value, own = entry.get("value"), _name(entry)
            if isinstance(value, int) and 0 <= value < 2**length and (length > 1 or value == 1):
                whole = _name(field)
                name = (whole or own) if length == 1 else " ".join(filter(None, (whole, own)))
                if name:
                    yield name, MaskClass((value,), offset, length), entry.get("nodata") is True or name in _NO_DATA


def _entries(place: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    values = place.get(name)
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []


def _name(entry: Mapping[str, Any]) -> str:
    """Return the name of a class in small letters and with spaces; its description if it has no name."""
    text = entry.get("name") or entry.get("title") or entry.get("description")
    return " ".join(re.split(r"[\s_-]+", text.lower()))[:100].strip() if isinstance(text, str) else ""
