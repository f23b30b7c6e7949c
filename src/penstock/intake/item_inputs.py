"""The input of the job that a STAC item becomes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.intake.drop_inputs import document_input
from penstock.models import CatalogueEntry

#: Outputs of a scene's class map, and of the STAC item of its results.
CLASSES, ITEM = "classes", "item"


def job_input(
    area: Mapping[str, Any] | None, given: Mapping[str, Any], item: Mapping[str, Any], entry: CatalogueEntry
) -> dict[str, Any]:
    """Return the input of an item's job: the item, `given`, the area if the model takes one, and the output `item`.

    Raises `InvalidInput` for a model that takes no STAC items.
    """
    known = entry.input_schema.get("properties", {})
    outputs = known.get("outputs", {})
    usual = [*outputs.get("default", ()), ITEM] if ITEM in outputs.get("items", {}).get("enum", ()) else []
    return {
        **({"area": area} if area is not None and "area" in known else {}),
        **({"outputs": list(dict.fromkeys(usual))} if usual else {}),
        **given,
        **document_input(dict(item), entry.input_schema, str(item.get("id"))),
    }


def maps_classes(value: Mapping[str, Any]) -> bool:
    """Return True if the results of an input have a class map whose classes have names: a condition needs both."""
    return {CLASSES, ITEM} <= set(value.get("outputs", ()))
