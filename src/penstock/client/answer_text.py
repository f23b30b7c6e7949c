"""The answer of a job as lines of text, for terminals and `repr`: its text, then the parts that its views name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.views import Shown, View, found_nothing, shown

#: Items of a part that are written out, and characters of a cell, at most.
MAX_ITEMS, MAX_CELL = 20, 48
#: Lines of JSON that has no view, at most.
MAX_JSON_LINES = 40
#: Parts that are written out, at most: labels of each frame of a film, say.
MAX_PARTS = 10
_BAR = 20


def answer_lines(text: str | None, data: Mapping[str, Any] | None, views: Sequence[View]) -> list[str]:
    """Return the lines of an answer; JSON without a view is written as JSON where there is nothing else."""
    lines = text.splitlines() if text else []
    parts = [part for part in shown(views, data) if part.form != "passages" or not text]  # the text has them
    for part in parts[:MAX_PARTS]:
        lines += [f"{part.heading}:"] if part.heading else []
        lines += _lines(part)
    if len(parts) > MAX_PARTS:
        lines.append(f"... and {len(parts) - MAX_PARTS:,} more lists like these")
    if lines or not data:
        return lines
    if found_nothing(views, data):
        return ["nothing was found"]
    whole = json.dumps(data, indent=2, ensure_ascii=False).splitlines()
    cut = len(whole) - MAX_JSON_LINES
    return whole if cut <= 0 else [*whole[:MAX_JSON_LINES], f"... and {cut:,} more lines of JSON"]


def _lines(part: Shown) -> Iterator[str]:
    items = part.items[:MAX_ITEMS]
    form = part.form if part.fits else "rows"  # the processor may promise what it does not keep
    if form == "labels":
        yield from _bars(items)
    elif form == "vectors":
        yield from map(_vector, items)
    elif part.form == "rows" and len(items) == 1 and not isinstance(items[0], Mapping | list):
        yield str(items[0]) if isinstance(items[0], str) else json.dumps(items[0], ensure_ascii=False)
    else:
        yield from _table([_row(item, number) for number, item in enumerate(items)])
    if len(part.items) > MAX_ITEMS:
        yield f"... and {len(part.items) - MAX_ITEMS:,} more"


def _bars(items: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each label: its name, its score, and a bar for scores from 0 to 1."""
    found = [(_cell(item["label"]), item["score"]) for item in items]
    width = max((len(label) for label, _ in found), default=0)
    for label, score in found:
        number = score if isinstance(score, int | float) else 0.0
        bar = "█" * round(_BAR * number) if 0 <= number <= 1 else ""
        yield f"{label:<{width}}  {_cell(score):>8}  {bar}".rstrip()


def _vector(item: Sequence[Any]) -> str:
    first = ", ".join(_cell(number) for number in item[:4])
    return f"{len(item):,} numbers: {first}{', ...' if len(item) > 4 else ''}"


def _row(item: Any, number: int) -> dict[str, Any]:
    """Return an item as a row: a box as its corners, a plain value beside its index."""
    if not isinstance(item, Mapping):
        return {"": number, "value": item}
    return {name: _box(value) if name == "box" else value for name, value in item.items()}


def _box(value: Any) -> Any:
    corners = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(corners, list) and all(isinstance(each, int | float) for each in corners):
        return ", ".join(f"{each:.0f}" for each in corners)
    return value


def _table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(names))]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.4g}"
        case str():
            text = " ".join(value.split())
        case _:
            text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
