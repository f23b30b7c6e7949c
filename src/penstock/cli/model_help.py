"""The help of one model: its title, files and texts, and its fields as options, by its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from typer import BadParameter
from typer.core import TyperCommand

from penstock.cli.display import out
from penstock.cli.params import text_field
from penstock.client.answers import ModelInfo
from penstock.client.local_files import media_fields, shapes
from penstock.media_types import SUFFIXES

if TYPE_CHECKING:
    import typer

    from penstock.models import CatalogueEntry

#: Keys of a context: True if the help of the named model is wanted, and how many words stand after `--`.
_HELP, _PLAIN = "penstock.help", "penstock.plain"
_BOUNDS = (
    ("minimum", "at least {}"), ("exclusiveMinimum", "more than {}"), ("maximum", "at most {}"),
    ("exclusiveMaximum", "less than {}"), ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"), ("minItems", "at least {} items"), ("maxItems", "at most {} items"),
    ("pattern", "as {}"),
)  # fmt: skip
_WORDS = {
    "string": "TEXT", "integer": "INTEGER", "number": "NUMBER", "boolean": "true|false", "object": "JSON",
    "null": "null",
}  # fmt: skip


class ModelCommand(TyperCommand):
    """A command whose arguments are a model's: `MODEL --help` is the model's help, and words after `--` are texts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # typer's own kind of Context
        """Read the arguments; without a model, `--help` is that of the command."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_PLAIN] = max(0, len(args) - end - 1)
        others = [word for word in args[:end] if word != "--help"]
        if others and len(others) < end:
            ctx.meta[_HELP] = True
            try:
                return super().parse_args(ctx, [*others, *args[end:]])
            except BadParameter:  # no model is named
                ctx.meta[_HELP] = False
        return super().parse_args(ctx, list(args))


def wants_help(context: typer.Context) -> bool:
    """Return True if the help of the named model is wanted."""
    return bool(context.meta.get(_HELP))


def plain_words(context: typer.Context) -> int:
    """Return how many of the last arguments stand after `--`: they are no options."""
    return int(context.meta.get(_PLAIN, 0))


def show_help(command: str, model: CatalogueEntry | ModelInfo) -> None:
    """Print the help of a model; `command` is `run` or `submit` and the model as the command line names it."""
    for line in help_lines(command, model.title, model.description, model.input_schema):
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def help_lines(command: str, title: str, description: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the help of a model."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    text, files = text_field(schema), media_fields(schema)
    required = set(schema.get("required", ()))
    alone = [] if text is None or required & set(files) else [text]
    arguments = [name for name in properties if name in files or name in alone]
    words = "".join(f" {name.upper()}{'...' if files.get(name) else ''}" for name in arguments if name in required)
    yield f"Usage: penstock {command} [OPTIONS]{words}"
    yield ""
    yield title
    if description:
        yield ""
        yield description
    rows = {name.upper(): _said(schema, properties[name], name in required) for name in arguments}
    yield from _table("Arguments", rows)
    options = {
        _option(name.replace("_", "-"), _word(schema, part)): _said(schema, part, name in required)
        for name, part in properties.items()
        if name not in files
    }
    yield from _table("Options", options)
    yield ""
    general = f"penstock {command.partition(' ')[0]} --help"
    yield f"`{general}` shows the options of the command: --out DIR, --json and others."


def _option(name: str, word: str) -> str:
    return f"--{name}, --no-{name}" if word == "true|false" else f"--{name} {word}"


def _table(title: str, rows: Mapping[str, str]) -> Iterator[str]:
    if rows:
        width = max(map(len, rows))
        yield ""
        yield f"{title}:"
        yield from (f"  {name:<{width}}  {said}".rstrip() for name, said in rows.items())


def _word(schema: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Return the type of a field in a word."""
    typed = [shape for shape in shapes(schema, part) if {"type", "enum", "const"} & set(shape)]
    found = dict.fromkeys(_of_shape(schema, shape) for shape in typed if shape.get("type") != "null")
    return "|".join(found) or "JSON"


def _of_shape(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    if "enum" in shape:
        return "|".join(map(_plain, shape["enum"]))
    if "const" in shape:
        return _plain(shape["const"])
    kind = shape.get("type")
    if kind == "array":
        return f"{_word(schema, shape.get('items') or {})},..."
    return _WORDS.get(str(kind), "JSON")


def _said(schema: Mapping[str, Any], part: Mapping[str, Any], is_required: bool) -> str:
    """Return the help of a field: its description, files, bounds, and default."""
    found = list(shapes(schema, part))
    parts = [str(part["description"])] if part.get("description") else []
    suffixes = [suffix for shape in (part, *found) for suffix in shape.get(SUFFIXES, ())]
    of_media = any(shape.get("format") == "media" for shape in found)
    if suffixes:
        parts.append(f"{'a' if of_media else 'or a'} file ({', '.join(dict.fromkeys(suffixes))})")
    elif of_media:
        parts.append("a file")
    bounded = [shape for shape in found if shape.get("format") != "media"]
    bounds = [text.format(shape[name]) for shape in bounded for name, text in _BOUNDS if name in shape]
    parts += dict.fromkeys(bounds)
    if is_required:
        parts.append("required")
    elif part.get("default") is not None:
        parts.append(f"default: {_plain(part['default'])}")
    return "; ".join(parts)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
