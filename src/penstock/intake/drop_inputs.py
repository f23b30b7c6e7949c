"""The parts of a job's input that a drop rule leaves to its model: field, suffixes, documents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client.local_files import UsageProblem, assign_files, media_fields, takes_list
from penstock.config_tables import DropRule
from penstock.errors import ConfigError, InvalidInput
from penstock.media_types import SUFFIXES
from penstock.models import LINKS, CatalogueEntry, find

#: Ending of objects that hold a job's input, or a STAC item, for rules without `field`.
DOCUMENT = ".json"


def fitted(rule: DropRule, schema: Mapping[str, Any]) -> DropRule:
    """Return a rule with the suffixes of its model's files, unless it names its own.

    A field without declared suffixes takes files of every name. Raises the errors of `field_for`.
    """
    if rule.suffixes is not None:
        return rule
    part = schema.get("properties", {}).get(field_for(rule, schema), {})
    return rule.model_copy(update={"suffixes": tuple(part.get(SUFFIXES, ("",)))})


def all_fitted(rules: Iterable[DropRule], catalogue: Mapping[str, CatalogueEntry]) -> tuple[DropRule, ...]:
    """Return the rules with the suffixes of their models; a rule whose model is not known or does not fit stays."""
    return tuple(_fitted_if_known(rule, find(catalogue, rule.model)) for rule in rules)


def _fitted_if_known(rule: DropRule, entry: CatalogueEntry | None) -> DropRule:
    try:
        return rule if entry is None else fitted(rule, entry.input_schema)
    except ConfigError:
        return rule


def field_for(rule: DropRule, schema: Mapping[str, Any]) -> str:
    """Return the field of the model's input that holds an object: the rule's, or the one that takes a single file.

    Raises `ConfigError` with the line to add where the model has no such field, or needs several files.
    """
    known = schema.get("properties", {})
    names = ", ".join(media_fields(schema)) or "none"
    if rule.field is not None:
        if known and rule.field not in known:
            raise ConfigError(
                f"the model {rule.model} has no field {rule.field!r}; its files are: {names}. Remove `field` from the "
                "rule, or correct it"
            )
        return rule.field
    try:
        [field] = assign_files(["object"], schema, taken=rule.input)
    except (UsageProblem, ValueError):
        raise ConfigError(
            f"the model {rule.model} does not take one file alone; its files are: {names}. Add "
            f'`suffixes = ["{DOCUMENT}"]` to the rule, and drop a JSON file with the input of each job'
        ) from None
    return field


def is_document(rule: DropRule, key: str) -> bool:
    """Return True for an object of the rule that holds a job's input or a STAC item."""
    return rule.field is None and key.lower().endswith(DOCUMENT)


def field_value(schema: Mapping[str, Any], field: str, reference: str) -> str | list[str]:
    """Return a reference as the field takes it: alone, or in a list where the field is a list of media only."""
    return [reference] if takes_list(schema, (field,)) else reference


def is_stac(value: Any) -> bool:
    """Return True for a STAC item, or a collection of items."""
    return isinstance(value, dict) and value.get("type") in ("Feature", "FeatureCollection")


def document_input(document: dict[str, Any], schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the input of a job from a dropped document: a STAC item or collection, or the input itself.

    Raises `InvalidInput` for a STAC item where the model takes none.
    """
    if not is_stac(document):
        return document
    field = next((name for name, part in schema.get("properties", {}).items() if part.get(LINKS) is True), None)
    if field is None:
        raise InvalidInput(f"{key} is a STAC item, and the model takes none: write the input of a job")
    return {field: document}
