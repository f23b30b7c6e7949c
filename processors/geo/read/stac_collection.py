"""STAC collections of items, such as the answer of a search: their items are the scenes of a mosaic, in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from penstock.errors import InvalidInput, Issue
from penstock.processors.base import Media
from penstock.processors.geo.read.metadata import parse_time
from penstock.processors.geo.read.opened_scene import naming
from penstock.processors.geo.read.stac_item import read_document
from penstock.processors.geo.scene_request import MAX_SCENES, Acquisition, MosaicRequest, SingleScene
from penstock.processors.links import collection_items, has_further_pages

_POINTER: Final = "/input/stac"
#: Time between items of one day at most, where midnight (UTC) lies between them.
_PASS: Final = timedelta(hours=12)


def with_items(acquisition: Acquisition, media: Media, label: str) -> Acquisition:
    """Return a date in which the items of collections stand for the collections: several items are a mosaic.

    Raises `InvalidInput` for a collection that is empty, too large, incomplete or of several days, and for one beside
    files of the request.
    """
    scenes, found = list[SingleScene](), False
    with naming(label):
        for single in acquisition.singles():
            items = _items(single, media)
            found = found or items is not None
            scenes += [single] if items is None else _scenes(single, items)
    if not found:
        return acquisition
    if len(scenes) > MAX_SCENES:
        raise _refused(f"The STAC collection has {len(scenes)} items; a mosaic has at most {MAX_SCENES} scenes.")
    if acquisition.mosaic is not None:
        return acquisition.model_copy(update={"mosaic": acquisition.mosaic.model_copy(update={"scenes": scenes})})
    if len(scenes) == 1:
        return acquisition.model_copy(update={"stac": scenes[0].stac})
    return acquisition.model_copy(update={"mosaic": MosaicRequest(scenes=scenes), "stac": None, "mask": None})


def _items(single: SingleScene, media: Media) -> Sequence[Mapping[str, Any]] | None:
    """Return the items of a scene's collection; None for an item, and for a scene without either."""
    if single.stac is None:
        return None
    base = single.stac if isinstance(single.stac, str) else None
    document = single.stac if isinstance(single.stac, Mapping) else read_document(media.path(single.stac))
    items = collection_items(document, base)
    if items is None:
        return None
    if not items or len(items) != len(document["features"]):
        raise _refused("The STAC collection has no items." if not items else "The STAC collection has invalid items.")
    if has_further_pages(document):
        raise _refused(
            f"The STAC collection is one page of {len(items)} items, and there are others: raise the `limit` of the "
            "search, or narrow it."
        )
    if len(items) > 1:
        _check_day(items)
    return items


def _scenes(single: SingleScene, items: Sequence[Mapping[str, Any]]) -> Iterator[SingleScene]:
    """Yield the scene of each item, with the radiometry and the kind of mask that the request gives."""
    own = [name for name in ("scene", "files", "sidecar") if getattr(single, name) is not None]
    own += ["mask.media"] if single.mask is not None and single.mask.media is not None else []
    if len(items) > 1 and own:
        raise _refused(
            f"The STAC collection has {len(items)} items, each with files of its own: remove {' and '.join(own)}, or "
            "give the scenes one by one in `mosaic`."
        )
    for item in items:
        yield SingleScene.model_validate(
            {name: getattr(single, name) for name in SingleScene.model_fields} | {"stac": dict(item)}
        )


def _check_day(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise `InvalidInput` for items of several days; a pass of a satellite may cross midnight (UTC)."""
    times = sorted(((_time(item), _name(item, at)) for at, item in enumerate(items, 1)), key=lambda each: each[0])
    (first, earliest), (last, latest) = times[0], times[-1]
    if first.date() != last.date() and last - first >= _PASS:
        raise _refused(
            f"The items of the STAC collection are of different days: {earliest} of {first.date()}, {latest} of "
            f"{last.date()} (UTC). Narrow the search to one day, or name the scenes one by one in `mosaic`."
        )


def _time(item: Mapping[str, Any]) -> datetime:
    properties = item.get("properties")
    found = parse_time(properties.get("datetime")) if isinstance(properties, Mapping) else None
    if found is None:
        raise _refused(
            f"{_name(item, 0)} of the STAC collection has no `datetime` with a time zone, so that its day is unknown: "
            "name the scenes one by one in `mosaic`."
        )
    return found.astimezone(UTC)


def _name(item: Mapping[str, Any], at: int) -> str:
    name = item.get("id")
    return name[:100] if isinstance(name, str) and name else f"item {at}" if at else "An item"


def _refused(sentence: str) -> InvalidInput:
    return InvalidInput(sentence, errors=[Issue(_POINTER, "cannot be a mosaic")])
