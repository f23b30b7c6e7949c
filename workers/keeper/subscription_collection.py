"""The STAC collection of a subscription's results: relative links, valid by STAC 1.1. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.jobs import Artifact, Job
from penstock.processors.links import item_address
from penstock.storage.journal.subscription_progress import Entry, Published
from penstock.storage.journal.subscriptions import Subscription

COLLECTION, ITEM = "collection.json", "item.json"
GEOJSON = "application/geo+json"
STAC = "1.1.0"
#: Relations that a published item gets anew.
_OWN = frozenset({"self", "root", "parent", "collection"})
_EARTH = [-180.0, -90.0, 180.0, 90.0]


def folder_of(entry: Entry) -> str:
    """Return the folder of an entry's result: its item's id in plain characters, and the beginning of its job's id."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", entry.id).strip("._") or "item"
    return f"{name[:100]}-{str(entry.job)[:13]}"


def item_document(
    subscription: Subscription, entry: Entry, job: Job, made: Mapping[str, Any] | None, source: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the STAC item of a result: the worker's own, `made`, or one with the place and time of the source item."""
    base = _minimal(job.artifacts, source) if made is None else made
    links = [link for link in base.get("links", ()) if link.get("rel") not in _OWN]
    origin = item_address(source)
    if origin is not None and origin not in {link.get("href") for link in links}:
        links.append({"rel": "derived_from", "href": origin, "type": GEOJSON})
    up = f"../../{COLLECTION}"
    own = [{"rel": name, "href": up, "type": "application/json"} for name in ("root", "parent", "collection")]
    properties = {**base["properties"], "created": _text(job.completed_s or job.created_s)}
    return {
        **base,
        "id": entry.id,
        "collection": subscription.key.id,
        "properties": properties,
        "links": [*own, *links],
    }


def collection_document(subscription: Subscription, published: Sequence[Published]) -> dict[str, Any]:
    """Return the STAC collection of the published results, the earliest first."""
    ordered = sorted(published, key=lambda each: (each.time_s, each.folder))
    times = [each.time_s for each in ordered]
    boxes = [list(each.bbox) for each in ordered if each.bbox] or [_EARTH]
    whole = [
        *(min(box[side] for box in boxes) for side in (0, 1)),
        *(max(box[side] for box in boxes) for side in (2, 3)),
    ]
    interval = [_text(min(times)), _text(max(times))] if times else [_text(subscription.since_s), None]
    links = [{"rel": "root", "href": f"./{COLLECTION}", "type": "application/json"}]
    items = [{"rel": "item", "href": f"./items/{each.folder}/{ITEM}", "type": GEOJSON} for each in ordered]
    return {
        "type": "Collection",
        "stac_version": STAC,
        "id": subscription.key.id,
        "title": f"{subscription.key.id}: {subscription.model}",
        "description": (
            f"Results of the model {subscription.model} for the items of {', '.join(subscription.collections)} at "
            f"{subscription.stac}."
        ),
        "license": "other",
        "extent": {"spatial": {"bbox": [whole]}, "temporal": {"interval": [interval]}},
        "links": [*links, *items],
    }


def box_of(document: Mapping[str, Any]) -> tuple[float, ...]:
    """Return west, south, east, north of an item; empty without a valid `bbox`."""
    box = document.get("bbox")
    if not isinstance(box, list) or len(box) not in (4, 6) or not all(isinstance(each, int | float) for each in box):
        return ()
    return tuple(map(float, box if len(box) == 4 else [*box[:2], *box[3:5]]))


def _minimal(artifacts: Sequence[Artifact], source: Mapping[str, Any]) -> dict[str, Any]:
    names = ("datetime", "start_datetime", "end_datetime")
    held = source.get("properties") or {}
    found: dict[str, Any] = {
        "type": "Feature",
        "stac_version": STAC,
        "stac_extensions": [],
        "geometry": source.get("geometry"),
        "properties": {"datetime": None, **{name: held[name] for name in names if name in held}},
        "assets": {each.name: {"href": f"./{each.name}", "type": each.content_type} for each in artifacts},
    }
    return found | ({"bbox": list(box)} if (box := box_of(source)) else {})


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
