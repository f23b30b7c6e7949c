"""Formats of stored documents, and the rule for documents of another release.

Every document in Redis and in the object store has a `version`: the oldest format that can act on it. A release

- writes format `WRITES`, and `CHAINED` for a job that an older one must not run;
- reads formats up to `READS`, one above, and carries fields that it does not know unchanged;
- runs jobs, and sends webhooks, of formats up to `RUNS`; it leaves others as they are, for a newer process;
- refuses anything above `READS` by name (`RecordTooNew`) and changes nothing of it.

So a new field that an older process may ignore leaves the version alone; one that a process must understand raises the
version, one release after it is read. The release before rejects unknown fields of some documents: a new field of such
a document is marked `BESIDE` and stored beside it. `lua/common.lua` repeats the numbers for the scripts. Nothing here
does I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

#: Format of the documents that this release writes, but for jobs that wait for others.
WRITES = 1
#: Format of a job that waits for others: an older worker would run it at once.
CHAINED = 2
#: Newest format of the jobs that this release runs, and of the webhooks that it sends.
RUNS = 2
#: Newest format that this release reads.
READS = 3
#: Attribute with the unknown part of a document, and with its version: no document has fields of these names.
OWN = frozenset({"extra", "version"})

#: Metadata of a dataclass field that is stored beside its document, because the release before rejects it inside.
BESIDE = MappingProxyType({"beside": True})


def version_of(document: Mapping[str, Any]) -> int:
    """Return the format of a document; the first format for a document without a version."""
    return int(document.get("version") or 1)


def is_readable(version: int) -> bool:
    """Return True for a format that this release reads."""
    return version <= READS


def known(cls: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document that a dataclass has."""
    return {each.name: document[each.name] for each in fields(cls) if each.name in document and each.name not in OWN}


def inside(cls: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without the fields that are stored beside it."""
    return {name: value for name, value in document.items() if name not in _beside(cls)}


def beside(cls: Any, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document that are stored beside it and have a value."""
    return {name: document[name] for name in _beside(cls) if document.get(name) is not None}


def _beside(cls: Any) -> list[str]:
    return [each.name for each in fields(cls) if "beside" in each.metadata]


def unknown(document: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a document that is missing in `own`, the same document as this release writes it.

    Objects within objects are compared too, lists are not.
    """
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name not in own:
            found[name] = value
        elif value is not own[name] and isinstance(value, Mapping) and isinstance(own[name], Mapping):
            found |= {name: inner} if (inner := unknown(value, own[name])) else {}
    return found


def carrying(extra: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its unknown part; a field of `own` wins."""
    found = {**extra, **own}
    for name, value in extra.items():
        if isinstance(value, Mapping) and isinstance(own.get(name), Mapping):
            found[name] = carrying(value, own[name])
    return found
