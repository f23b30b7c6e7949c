"""JSON Schemas of STAC without a network: core schemas from pystac, those of extensions from beside the checkout."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, FormatChecker
from jsonschema.exceptions import best_match
from pystac.validation.local_validator import get_local_schema_cache
from referencing import Registry
from referencing.jsonschema import DRAFT7

CORE = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/item.json"
COLLECTION = "https://schemas.stacspec.org/v1.1.0/collection-spec/json-schema/collection.json"
EXTENSIONS = "https://stac-extensions.github.io"
_FOLDER = Path(__file__).parents[4] / "shared" / "data" / "schemas" / "stac"


def core_problems(document: dict[str, Any]) -> list[str]:
    """Return the error of an item or a collection in the core schemas, if there is one."""
    return _errors(COLLECTION if document["type"] == "Collection" else CORE, document)


def problems(item: dict[str, Any]) -> list[str]:
    """Return the errors of an item in the core schemas and in those of all its extensions, one for each schema.

    An extension without a schema here is an error. Skips the test where the schemas are missing; on CI it fails.
    """
    if not _FOLDER.is_dir():
        reason = "needs the schemas of STAC's extensions beside the checkout, ../shared/data/schemas/stac"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    known = _schemas()
    unknown = [f"no schema {uri}" for uri in item["stac_extensions"] if uri not in known]
    return [
        *unknown,
        *(error for uri in (CORE, *item["stac_extensions"]) if uri in known for error in _errors(uri, item)),
    ]


def _errors(uri: str, item: dict[str, Any]) -> list[str]:
    validator = Draft7Validator(_schemas()[uri], registry=_registry(), format_checker=FormatChecker())
    error = best_match(validator.iter_errors(item))
    return [] if error is None else [f"{uri}: {error.json_path}: {error.message[:500]}"]


@cache
def _schemas() -> dict[str, dict[str, Any]]:
    """Return each schema under the address by which items and other schemas name it."""
    found = dict(get_local_schema_cache())
    for path in sorted(_FOLDER.glob("*.json")):
        name, _, version = path.stem.rpartition("-")
        found[f"{EXTENSIONS}/{name}/{version}/schema.json"] = json.loads(path.read_text())
    return {uri: {**schema, "$id": uri} for uri, schema in found.items()}


@cache
def _registry() -> Registry[Any]:
    return Registry().with_resources((uri, DRAFT7.create_resource(schema)) for uri, schema in _schemas().items())
