"""Quick checks of inputs: schemas compiled once, for the usual answer that an input is valid.

A check by `jsonschema` takes as long as the rest of a submission together. The compiled one only ever says yes: what it
refuses, and what it does not know, `jsonschema` judges and explains. It comes with the extra `fast`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

try:
    import jsonschema_rs
except ModuleNotFoundError:  # without the extra `fast`, `jsonschema` judges every input
    jsonschema_rs = None  # type: ignore[assignment]

#: Schemas that are kept.
MAX_SCHEMAS = 2000
#: Parts of a schema that the compiled check may take less strictly: negated classes of characters (its classes are
#: ASCII, Python's are Unicode) and exact fractions.
_OTHERWISE = re.compile(r'\\\\[WDSBb]|"multipleOf"|"format": ?"regex"')


class Schemas:
    """Compiled schemas by their identity: entries of the catalogue with the same text share theirs."""

    def __init__(self) -> None:
        #: Identity -> the schema, so that no other one gets its identity, and the check; None where there is none.
        self._known: dict[int, tuple[Mapping[str, Any], Any]] = {}

    def surely_allows(self, schema: Mapping[str, Any], value: Mapping[str, Any]) -> bool:
        """Return True for a value that is valid; False means that `jsonschema` must judge."""
        found = self._known.get(id(schema))
        if found is None:
            if len(self._known) >= MAX_SCHEMAS:
                self._known.clear()
            found = self._known[id(schema)] = schema, _compiled(schema)
        check = found[1]
        try:
            return check is not None and bool(check.is_valid(value))
        except (ValueError, TypeError):  # a value that JSON does not have
            return False


def _compiled(schema: Mapping[str, Any]) -> Any:
    if jsonschema_rs is None:
        return None
    try:
        if _OTHERWISE.search(json.dumps(schema)):
            return None
        return jsonschema_rs.Draft202012Validator(dict(schema))
    except (ValueError, TypeError, jsonschema_rs.ReferencingError):
        return None
