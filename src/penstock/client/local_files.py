"""Local files in a job's input, found or assigned by the model's JSON Schema, and the references that replace them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.client.answers import ClientError
from penstock.media_types import BESIDE, is_reference


def files_beside(path: str | Path) -> list[str]:
    """Return the mask, the metadata and the world file beside a raster file: at most one each."""
    folder, name = Path(path).parent, Path(path).name
    # Not `Path.is_file`: any text may stand where a path does, and an overlong one would raise.
    each = ([str(folder / one) for one in names if os.path.isfile(folder / one)] for names in names_beside(name))  # noqa: PTH113
    return [file for found in each for file in found[:1]]


def with_beside(
    document: Mapping[str, Any], schema: Mapping[str, Any], beside: Callable[[str], list[str]] = files_beside
) -> dict[str, Any]:
    """Return an input with the files that lie beside its local files, as far as the schema has a field for them.

    `beside` returns those of a file. They are added where the input does not have the field: an empty list there adds
    none.
    """

    def filled(part: Mapping[str, Any], value: Any) -> Any:
        found = list(shapes(schema, part))
        if isinstance(value, list | tuple):
            items: Mapping[str, Any] = next((shape["items"] for shape in found if "items" in shape), {})
            return [filled(items, each) for each in value]
        if not isinstance(value, Mapping):
            return value
        known = {name: inner for shape in found for name, inner in shape.get("properties", {}).items()}
        inside = {name: filled(known.get(name, {}), inner) for name, inner in value.items()}
        for name, inner in value.items():
            field = known.get(name, {}).get(BESIDE)
            if field is not None and value.get(field) is None and _is_local(inner) and (files := beside(inner)):
                inside[field] = files
        return inside

    return dict(filled(schema, document))


def lists_beside(
    document: Mapping[str, Any], files: Mapping[str, str | list[str]], schema: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return the files that lie beside the `files` of an input, by the place of their list: `change.before.beside`."""
    for place, file in files.items():
        document = with_media(document, place, file)
    known = split_files(document, schema)[1]
    found: dict[str, list[str]] = {}
    for place, each in split_files(with_beside(document, schema), schema)[1].items():
        if place not in known:
            found.setdefault(place.rpartition(".")[0], []).append(str(each))
    return found


def names_beside(name: str) -> tuple[list[str], list[str], list[str]]:
    """Return the names that GDAL looks for beside a raster file: of its mask, its metadata and its world file."""
    stem, _, kind = name.rpartition(".")
    worlds = dict.fromkeys((f"{kind[:1]}{kind[-1:]}w", f"{kind}w", "wld"))
    ends = dict.fromkeys(end for world in worlds for end in (world, world.lower(), world.upper()))
    return [f"{name}.msk"], [f"{name}.aux.xml"], [f"{stem}.{end}" for end in ends]


def split_files(document: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str | Path]]:
    """Return an input without its local files, and the files by place: `scene`, `change.before.scene`, `images.0`.

    A local file is a path, or a text that is no reference, where the schema has media, at any depth. In lists, None
    holds its place. Raises `ClientError` for a path elsewhere: it is not sent as a file.
    """
    files = {".".join(place): file for place, file in _local_files(schema, schema, document, ())}
    kept = {name: _without(files, name, value) for name, value in document.items() if name not in files}
    return kept, files


def with_references(
    document: Mapping[str, Any], schema: Mapping[str, Any], refer: Callable[[str], str]
) -> dict[str, Any]:
    """Return an input whose names of local files, at any depth, are replaced by what `refer` returns for them."""
    kept, files = split_files(document, schema)
    for place, file in files.items():
        kept = with_media(kept, place, refer(str(file)))
    return kept


def with_media(document: Mapping[str, Any], field_name: str, reference: str | list[str]) -> dict[str, Any]:
    """Return a copy of a job's input with the media reference in a field.

    `a.b` is field `b` of `a`, and `a.0` the first item of the list `a`, whose place None holds. Raises `ClientError`
    where the input already has the field, or has no such item.
    """
    head, _, rest = field_name.partition(".")
    return {**document, head: _with(document.get(head), rest.split(".") if rest else [], field_name, reference)}


def _with(into: Any, place: Sequence[str], field_name: str, reference: str | list[str]) -> Any:
    """Return a value with the reference at a place inside it."""
    if not place:
        if into is not None:
            raise ClientError(f"the field {field_name!r} is given twice: in the input and as a file")
        return reference
    head, *rest = place
    if not isinstance(into, list):
        fields = into if isinstance(into, Mapping) else {}
        return {**fields, head: _with(fields.get(head), rest, field_name, reference)}
    if not head.isdecimal() or int(head) >= len(into):
        raise ClientError(f"the field {field_name!r} has no place in the input: there is no item {head} of the list")
    at = int(head)
    return [*into[:at], _with(into[at], rest, field_name, reference), *into[at + 1 :]]


def _local_files(
    root: Mapping[str, Any], part: Mapping[str, Any], value: Any, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str | Path]]:
    """Yield the place of each local file in a value, in order. A place may repeat where several schemas fit."""
    found = list(shapes(root, part))
    if any(shape.get("format") == "media" for shape in found) and _is_local(value):
        yield place, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            for shape in found:
                if name in shape.get("properties", {}):
                    yield from _local_files(root, shape["properties"][name], inner, (*place, name))
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            for shape in found:
                yield from _local_files(root, shape.get("items") or {}, inner, (*place, str(at)))


def _is_local(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and not is_reference(value))


def _without(files: Mapping[str, Any], place: str, value: Any) -> Any:
    """Return a value without the files in it; raise `ClientError` for another path."""
    if isinstance(value, Path):
        raise ClientError(f"the file {value} in {place!r} cannot be sent: upload it first, and give its reference")
    if isinstance(value, Mapping):
        inside = {name: (f"{place}.{name}", inner) for name, inner in value.items()}
        return {name: _without(files, at, inner) for name, (at, inner) in inside.items() if at not in files}
    if isinstance(value, list | tuple):
        each = [(f"{place}.{n}", inner) for n, inner in enumerate(value)]
        return [None if at in files else _without(files, at, inner) for at, inner in each]
    return value


def media_fields(schema: Mapping[str, Any]) -> dict[str, bool]:
    """Return the media fields of a model's input: name -> True where the field is a list."""
    found: dict[str, bool] = {}
    for name, part in schema.get("properties", {}).items():
        for shape in shapes(schema, part):
            if shape.get("format") == "media":
                found[name] = False
            elif any(item.get("format") == "media" for item in shapes(schema, shape.get("items") or {})):
                found[name] = True
    return found


def takes_list(schema: Mapping[str, Any], place: Sequence[str]) -> bool:
    """Return True if the field at a place of an input takes its media in a list only."""
    found = list(shapes(schema, schema))
    for name in place:
        inside = [shape["properties"][name] for shape in found if name in shape.get("properties", {})]
        found = [shape for part in inside for shape in shapes(schema, part)]
    items = [item for shape in found for item in shapes(schema, shape.get("items") or {})]
    return all(shape.get("format") != "media" for shape in found) and any(i.get("format") == "media" for i in items)


def shapes(root: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a schema and its alternatives, with each `$ref` into `root` resolved."""
    if "$ref" in part:
        part = root["$defs"][part["$ref"].removeprefix("#/$defs/")]
    yield part
    for union in ("anyOf", "oneOf", "allOf"):
        for inner in part.get(union, ()):
            yield from shapes(root, inner)


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
