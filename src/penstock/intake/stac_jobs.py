"""Requests of raster jobs for the items of a search: one for each item, for each day, or for all. Pure.

The days are solar ones: UTC and an hour for each 15 degrees to the east. Midnight of UTC falls into the morning of
Sydney, where satellites take their images: one pass would be of two days.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from penstock.errors import InvalidInput
from penstock.intake.item_filter import item_time
from penstock.json_body import shown

JobKind = Literal["scene", "mosaic", "series"]


def batch_lines(
    items: Sequence[Mapping[str, Any]], kind: JobKind, area: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the lines of a batch for items in the order of time.

    `scene`: a job for each item. `mosaic`: a job for each solar day, at the longitude of the first item, with its items
    as one scene. `series`: one job whose dates are the days. `area` becomes the area of each job. Raises
    `InvalidInput` for an item without an id or a time.
    """
    if kind == "scene":
        return [_line(_id(item), {"stac": _alone(item)}, area) for item in items]
    days, shift = dict[str, list[Mapping[str, Any]]](), timedelta(hours=_longitude(items[0]) / 15)
    for item in items:
        days.setdefault(_day(item, shift), []).append(item)
    if kind == "mosaic":
        return [_line(day, _of_day(found), area) for day, found in days.items()]
    first, last = next(iter(days)), next(reversed(days))
    return [_line(f"{first}_{last}", {"dates": [_of_day(found) for found in days.values()]}, area)]


def _line(name: str, document: Mapping[str, Any], area: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"custom_id": name, "input": {**document, **({} if area is None else {"area": dict(area)})}}


def _of_day(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    alone = [_alone(item) for item in items]
    return {"stac": alone[0] if len(alone) == 1 else {"type": "FeatureCollection", "features": alone}}


def _alone(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item with its link `self` alone, which resolves relative addresses: the others name no file of it."""
    links = found if isinstance(found := item.get("links"), list) else []
    return {**item, "links": [link for link in links if isinstance(link, Mapping) and link.get("rel") == "self"]}


def _id(item: Mapping[str, Any]) -> str:
    if "id" not in item:
        raise InvalidInput("An item of the catalogue has no id, so it makes no job.")
    return str(item["id"])


def _longitude(item: Mapping[str, Any]) -> float:
    """Return the western edge of an item in degrees; 0 for one without a usable `bbox`."""
    bbox = item.get("bbox")
    west = bbox[0] if isinstance(bbox, list) and bbox else 0
    return west if isinstance(west, int | float) and abs(west) <= 180 else 0


def _day(item: Mapping[str, Any], shift: timedelta) -> str:
    time = item_time(item)
    if time is None or not 1 < time.year < 9999:
        raise InvalidInput(f"The item {shown(item.get('id'))} has no time, so it belongs to no day: search for scenes.")
    return (time + shift).date().isoformat()
