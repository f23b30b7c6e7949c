"""IO signatures: the named values that pass between a processor and a runner, declared on both sides. Pure.

A processor declares the values that it sends in each prompt and reads from each output; a runner declares those that it
takes and gives. `misfits` compares the two, so that a pair that cannot serve is refused before there is a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field, field_validator

from penstock.models import Record

#: Kinds of plain data in a prompt or an output. `any` fits every kind, arrays too.
PLAIN = ("text", "number", "list", "object", "any")
#: As the kind of the output `*`: an output has the values of its prompt.
SAME = "the prompt's"
#: Name of every other value: of a network whose names its files or its record decide.
OTHERS = "*"

_ARRAY = re.compile(r"(?P<dtype>[a-z]+[0-9]*)( \((?P<axes>[^()]*)\))?")
_DTYPE = re.compile(r"array|bool|u?int(8|16|32|64)|float(16|32|64)")
_AXIS = re.compile(r"_|\.\.\.|[1-9][0-9]*|[A-Za-z][\w *]*")
#: The axis of a table's rows, which is no axis of a sample.
_ROWS = "rows"
#: Any array: of any dtype and with any number of axes.
_OF_ARRAYS = "array"
_NOTHING = "it serves no processor"


class IOSignature(Record):
    """The values of a prompt, and those of its output, as a processor or a runner declares them.

    Each value has a name and a kind: a dtype with its axes (`float32 (bands, H, W)`, or `array (H, W)` for any dtype,
    or `array`), `text`, `number`, `list`, `object` or `any`; alternatives are joined by ` or `. An axis is a size, a
    name for any size, `_` or, as the last one, `...` for any further axes. `rows` fits only `rows` and `_`. A name may
    have a `*` for any characters, and the name `*` stands for all values without an entry.

    A processor sends all values of `prompt`, and the runner must take each; it may send those of `optional`, which a
    runner may ignore. A runner needs all values of `prompt` and takes those of `optional` where they are sent. A
    processor reads all values of `output`; a runner gives all of them.
    """

    prompt: Mapping[str, str]
    output: Mapping[str, str]
    optional: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("prompt", "output", "optional")
    @classmethod
    def _kinds(cls, values: Mapping[str, str]) -> Mapping[str, str]:
        for kind in values.values():
            if kind != SAME:
                _alternatives(kind)
        return values

    def sends(self) -> str:
        """Return the names of the prompt's values as text."""
        return _listed(self.prompt)

    def reads(self) -> str:
        """Return the names of the output's values as text."""
        return _listed(self.output)


#: The signatures of a runner by kind of model, such as a task: a model makes all signatures of one kind.
Offers = Mapping[str, Sequence[IOSignature]]


def declared(processor: Any) -> tuple[IOSignature, ...] | None:
    """Return the signatures that a processor or its class declares in `io_signatures`; None if it declares none.

    A job of the processor may have prompts of each.
    """
    found = getattr(processor, "io_signatures", None)
    return None if found is None else tuple(found)


def fits(needed: Sequence[IOSignature] | None, offers: Offers | None) -> bool:
    """Return True if a processor with these signatures can work with a runner, or if one of them declares nothing."""
    return needed is None or offers is None or any(not misfits(needed, offered) for offered in offers.values())


def closest(needed: Sequence[IOSignature], offers: Offers) -> list[str]:
    """Return the misfits with the kind of model that has the fewest; empty if one fits."""
    return min((misfits(needed, offered) for offered in offers.values()), key=len, default=[_NOTHING])


def misfits(needed: Sequence[IOSignature], offered: Sequence[IOSignature]) -> list[str]:
    """Return the reasons why a runner's signatures cannot serve a processor's; empty if each is served by one."""
    found: list[str] = []
    for one in needed:
        each = ([*_of_outputs(one, other), *_of_prompts(one, other)] for other in offered)
        found += [reason for reason in min(each, key=len, default=[_NOTHING]) if reason not in found]
    return found


def _of_outputs(processor: IOSignature, runner: IOSignature) -> Iterator[str]:
    """Yield the values that the processor reads and the runner does not give."""
    given = processor.prompt if runner.output.get(OTHERS) == SAME else runner.output
    for name, kind in processor.output.items():
        if name == OTHERS:
            wrong = [other for other, theirs in given.items() if not _suits(kind, theirs)]
            yield from (f"it gives `{other}` as {given[other]}, the processor reads {kind}" for other in wrong)
        elif (theirs := _find(given, name)) is None:
            yield f"it does not give `{name}` ({kind})"
        elif not _suits(kind, theirs):
            yield _other_kind("give", name, kind, theirs, "reads")


def _of_prompts(processor: IOSignature, runner: IOSignature) -> Iterator[str]:
    """Yield the values that the processor sends and the runner does not take, and those that it needs and lacks."""
    taken, others = {**runner.optional, **runner.prompt}, processor.prompt.get(OTHERS)
    known = {name: kind for name, kind in processor.optional.items() if name in taken}
    for name, kind in {**known, **processor.prompt}.items():
        theirs = kind if name == OTHERS else _find(taken, name)
        if theirs is None:
            yield f"it does not take `{name}` ({kind})"
        elif not _suits(kind, theirs):
            yield _other_kind("take", name, kind, theirs, "sends")
    for name in runner.prompt.keys() - processor.prompt.keys() - {OTHERS}:
        if others is None or not _suits(others, runner.prompt[name]):
            yield f"it needs `{name}` ({runner.prompt[name]}), which the processor does not always send"


def _other_kind(verb: str, name: str, kind: str, theirs: str, reads: str) -> str:
    """Return the sentence for a value of which both sides have another kind."""
    if theirs == _OF_ARRAYS:
        return f"it does not {verb} `{name}` ({kind}): all its values are arrays"
    return f"it {verb}s `{name}` as {theirs}, the processor {reads} {kind}"


def _find(values: Mapping[str, str], name: str) -> str | None:
    """Return the kind of a value: the one under its name, else under a pattern that fits the name."""
    if name in values:
        return values[name]
    return next((kind for pattern, kind in values.items() if fnmatchcase(name, pattern)), None)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One alternative of a kind."""

    #: A dtype, `array` for any, or plain data.
    name: str
    #: None: of any number of axes, or plain data.
    axes: tuple[str, ...] | None = None

    def suits(self, other: _Kind) -> bool:
        """Return True if a value may be of both kinds."""
        if "any" in (self.name, other.name):
            return True
        if self.name in PLAIN or other.name in PLAIN:
            return self.name == other.name
        return (_OF_ARRAYS in (self.name, other.name) or self.name == other.name) and _overlap(self.axes, other.axes)


def _suits(kind: str, other: str) -> bool:
    """Return True if a value may be of both kinds."""
    if SAME in (kind, other):
        return True
    return any(one.suits(two) for one in _alternatives(kind) for two in _alternatives(other))


def _overlap(axes: tuple[str, ...] | None, others: tuple[str, ...] | None) -> bool:
    if axes is None or others is None:
        return True
    for mine, theirs in zip(axes, others, strict=False):
        if "..." in (mine, theirs):
            return True
        if not _same_axis(mine, theirs):
            return False
    longer = max(axes, others, key=len)[min(len(axes), len(others)) :]
    return not longer or longer[0] == "..."


def _same_axis(mine: str, theirs: str) -> bool:
    if "_" in (mine, theirs):
        return True
    if mine.isdigit() and theirs.isdigit():
        return mine == theirs
    return (mine == _ROWS) == (theirs == _ROWS)


def _alternatives(kind: str) -> list[_Kind]:
    """Return the alternatives of a kind; raise `ValueError` for one that is not written as `IOSignature` describes."""
    return [_parsed(one, kind) for one in kind.split(" or ")]


def _parsed(text: str, whole: str) -> _Kind:
    if text in PLAIN:
        return _Kind(text)
    found = _ARRAY.fullmatch(text)
    axes = None if found is None or found["axes"] is None else tuple(axis.strip() for axis in found["axes"].split(","))
    if found is None or not _DTYPE.fullmatch(found["dtype"]) or not all(map(_AXIS.fullmatch, axes or ())):
        raise ValueError(
            f"{whole!r} is no kind of value: write one like 'float32 (bands, H, W)', 'array (H, W)', {', '.join(PLAIN)}"
        )
    return _Kind(found["dtype"], axes)


def _listed(values: Iterable[str]) -> str:
    return ", ".join("any others" if name == OTHERS else f"`{name}`" for name in values) or "nothing"
