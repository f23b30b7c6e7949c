"""Files without the names of their fields, assigned to the media fields of a model by its JSON Schema. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from penstock.client.answers import ClientError
from penstock.client.local_files import media_fields


class UsageProblem(ClientError):
    """The arguments make no valid request."""


def assign_files(
    files: Sequence[str], schema: Mapping[str, Any], taken: Iterable[str] = ()
) -> dict[str, str | list[str]]:
    """Return the files of each media field, in the schema's order; a field for a list takes those that are left over.

    Beside a list only the required fields for one file take theirs. Fields of which none is required may have none.
    Fields in `taken` have a value already. Raises `UsageProblem` if the numbers do not match.
    """
    taken = set(taken)
    fields = {name: many for name, many in media_fields(schema).items() if name not in taken}
    required = [name for name in fields if name in schema.get("required", ())]
    if ways := media_ways(schema):
        # Files use the first of the ways to give the media, also beside a named one; the other fields must be named.
        required = [] if taken & {name for way in ways for name in way} else ways[0]
        fields = {name: many for name, many in fields.items() if name in ways[0]}
    lists = [name for name, many in fields.items() if many]
    if not files and len(fields) == 1 and set(lists) & set(required):
        raise UsageProblem(f"the model needs at least one file ({lists[0]})")
    if len(files) < len(required) or (len(files) > len(fields) and not lists) or (files and len(lists) > 1):
        raise UsageProblem(_wrong_number(files, fields, required))
    if lists and files:
        return _around_a_list(files, [name for name in fields if name in required or name in lists], lists[0])
    order = sorted(fields, key=lambda name: name not in required)
    return dict(zip(order, files, strict=False))


def _around_a_list(files: Sequence[str], order: Sequence[str], listed: str) -> dict[str, str | list[str]]:
    """Return the files of the fields before a list, of the list, and of the fields after it."""
    at = order.index(listed)
    end = len(files) - (len(order) - at - 1)
    found: dict[str, str | list[str]] = {
        **dict(zip(order[:at], files, strict=False)),
        **dict(zip(order[at + 1 :], files[end:], strict=True)),
    }
    return found | ({listed: list(files[at:end])} if files[at:end] else {})


def media_ways(schema: Mapping[str, Any]) -> list[list[str]]:
    """Return the alternative sets of fields, if the first set consists of media; empty if the schema has none."""
    ways = [list(part.get("required", ())) for part in schema.get("anyOf", ())]
    return ways if ways and ways[0] and set(ways[0]) <= set(media_fields(schema)) else []


def _wrong_number(files: Sequence[str], fields: Mapping[str, bool], required: Sequence[str]) -> str:
    if not fields:
        return "the model takes no files"
    names = ", ".join(f"{name}{'' if name in required else ' (optional)'}" for name in fields)
    given = f"{len(files)} file{'' if len(files) == 1 else 's'} given"
    return f"{given}, but the model's files are: {names}. Name others with --param FIELD=media://..."
