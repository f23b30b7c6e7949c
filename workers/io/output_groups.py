"""Several outputs in one message: those that are there already, as long as they are small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.processors.base import Output, Value

#: Outputs of one message, their arrays, and bytes of these, at most. A single output has a message, whatever it is.
MAX_OUTPUTS, MAX_ARRAYS, MAX_BYTES = 16, 64, 256 * 1024


@dataclass(slots=True)
class OutputGroups:
    """The outputs of a run in groups. An error comes after the outputs before it, as if each were taken by itself."""

    outputs: Iterator[Output]
    _held: Output | None = None
    _error: Exception | None = None

    def take(self) -> list[Output]:
        """Wait for the next output, and return it with those that can be taken without waiting; none at the end."""
        found: list[Output] = []
        try:
            while (output := self._next()) is not None:
                if found and not _fit([*found, output]):
                    self._held = output
                    break
                found.append(output)
                if not output.followed or not _fit(found):
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
    """Yield the outputs of a message; `partial` has a value for each."""
    values: list[dict[str, Value]] = [{} for _ in partial]
    for name, value in data.items():
        at, _, own = name.partition(" ")
        values[int(at)][own] = value
    return map(Output, values, partial)


def _fit(outputs: Sequence[Output]) -> bool:
    """Return True for outputs of few and small arrays, and nothing else: text may be of any size."""
    arrays = [value for output in outputs for value in output.data.values() if isinstance(value, np.ndarray)]
    return (
        len(arrays) == sum(len(output.data) for output in outputs) <= MAX_ARRAYS
        and len(outputs) <= MAX_OUTPUTS
        and sum(array.nbytes for array in arrays) <= MAX_BYTES
    )
