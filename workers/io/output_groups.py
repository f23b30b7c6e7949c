"""Several outputs in one message: those that are there already, as long as they are small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.processors.base import Output, Value

#: Outputs of one message, their arrays, and bytes of these, at most. A single output has a message, whatever it is.
MAX_OUTPUTS, MAX_ARRAYS, MAX_BYTES = 16, 64, 256 * 1024


class Size(NamedTuple):
    """The size of a group, which fits into a message if it has few and small arrays, and nothing else."""

    outputs: int = 0
    arrays: int = 0
    bytes: int = 0
    #: False for text and other plain values, which may be of any size.
    measured: bool = True

    def with_output(self, output: Output) -> Size:
        """Return the size with one output more."""
        _, arrays, nbytes, measured = self
        for value in output.data.values():
            if isinstance(value, np.ndarray):
                nbytes += value.nbytes
            else:
                measured = False
        return Size(self.outputs + 1, arrays + len(output.data), nbytes, measured)

    @property
    def fits(self) -> bool:
        """True if one message can hold the group."""
        return self.measured and self.outputs <= MAX_OUTPUTS and self.arrays <= MAX_ARRAYS and self.bytes <= MAX_BYTES


@dataclass(slots=True)
class OutputGroups:
    """The outputs of a run in groups. An error comes after the outputs before it, as if each were taken by itself."""

    outputs: Iterator[Output]
    _held: Output | None = None
    _error: Exception | None = None

    def take(self) -> list[Output]:
        """Wait for the next output, and return it with those that can be taken without waiting; none at the end."""
        found: list[Output] = []
        size = Size()
        try:
            while (output := self._next()) is not None:
                size = size.with_output(output)
                if found and not size.fits:
                    self._held = output
                    break
                found.append(output)
                if not output.followed or not size.fits:
                    break
        except Exception as error:
            if not found:
                raise
            self._error = error
        return found

    def _next(self) -> Output | None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        held, self._held = self._held, None
        return held or next(self.outputs, None)


def joined(outputs: Sequence[Output]) -> dict[str, Value]:
    """Return the values of a group as those of one message."""
    return {f"{at} {name}": value for at, output in enumerate(outputs) for name, value in output.data.items()}


def separated(data: Mapping[str, Value], partial: Sequence[bool]) -> Iterator[Output]:
    """Yield the outputs of a message; `partial` has a value for each. Other names: `ValueError`, `IndexError`."""
    values: list[dict[str, Value]] = [{} for _ in partial]
    for name, value in data.items():
        at, _, own = name.partition(" ")
        if not at.isdecimal():
            raise ValueError(f"a value without its place: {name!r}")
        values[int(at)][own] = value
    return map(Output, values, partial)
