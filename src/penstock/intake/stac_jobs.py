"""Requests of raster jobs for the items of a search: one for each item, for each day, or for all. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from penstock.errors import InvalidInput
from penstock.intake.stac_search import item_time

JobKind = Literal["scene", "mosaic", "series"]


def batch_lines(
    items: Sequence[Mapping[str, Any]], kind: JobKind, area: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the lines of a batch for items in the order of time.

    `scene`: a job for each item. `mosaic`: a job for each day (UTC) with its items as one scene. `series`: one job
    whose dates are the days. `area` becomes the area of each job. Raises `InvalidInput` for an item without
    an id or a time.
    """
    if kind == "scene":
        return [_line(_id(item), {"stac": _alone(item)}, area) for item in items]
    days = {day: list(found) for day, found in groupby(items, key=_day)}
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


def _day(item: Mapping[str, Any]) -> str:
    time = item_time(item)
    if time is None:
        raise InvalidInput(f"The item {item.get('id')} has no time, so it belongs to no day: search for scenes.")
    return time[:10]
