"""Input descriptions: names, dtypes and shapes of a network's inputs, from `penstock.toml` or a model's options.

multiples = { H = 16, W = 16 }         # the sizes of H and W must be multiples of 16
[inputs.pixels]
dtype = "float32"
shape = ["bands=6", "H", "W"]          # a size, a name for any size, or a name with its size
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from penstock.errors import InvalidInput, PenstockError
from penstock.models import Record

#: `6`, `H` or `bands=6`.
Side = Annotated[int, Field(gt=0)] | Annotated[str, StringConstraints(pattern=r"^[A-Za-z_]\w*(=[1-9][0-9]*)?$")]

#: An array's dtype as numpy names it, and its shape.
Layout = tuple[str, tuple[int, ...]]

#: Size of variable sides in a warm-up, rounded up to a multiple.
_DUMMY_SIDE = 64


class InputSpec(Record):
    """An input array of a prompt."""

    dtype: Literal["float32", "float64", "int64", "int32", "int16", "uint8", "bool"] = "float32"
    shape: tuple[Side, ...]

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join(map(str, self.shape))})"


class Inputs(Record):
    """All inputs of a network."""

    inputs: Mapping[str, InputSpec] = Field(default_factory=dict)
    multiples: Mapping[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, str]:
        """The inputs as an `IOSignature` declares them: sizes where they are fixed, `_` for any size."""
        return {name: f"{spec.dtype} ({', '.join(map(_axis, spec.shape))})" for name, spec in self.inputs.items()}

    def fit(self, given: Mapping[str, Layout | str], *, fault: type[PenstockError]) -> None:
        """Check that every input is present and fits; an input that is no array is given as a text.

        Raises `fault` for a missing input, a wrong dtype or a wrong rank, and `InvalidInput` for wrong sizes.
        """
        sides: dict[str, int] = {}
        for name, spec in self.inputs.items():
            found = given.get(name, "nothing")
            if isinstance(found, str) or found[0] != spec.dtype or len(found[1]) != len(spec.shape):
                raise fault(f"the network takes `{name}`, {spec}, not {described(found)}")
            for side, size in zip(spec.shape, found[1], strict=True):
                if not self._fits(side, size, sides):
                    raise InvalidInput(f"the network takes `{name}`, {spec}{self._conditions()}, not {found[1]}")

    def example(self, sizes: Mapping[str, int]) -> dict[str, Layout]:
        """Return a valid layout of each input; variable sides have their size in `sizes`, or about 64."""
        return {
            name: (spec.dtype, tuple(self._size(side, sizes) for side in spec.shape))
            for name, spec in self.inputs.items()
        }

    def _size(self, side: Side, sizes: Mapping[str, int]) -> int:
        if isinstance(side, int):
            return side
        name, _, number = side.partition("=")
        factor = self.multiples.get(name, 1)
        return int(number) if number else sizes.get(name, -(-_DUMMY_SIDE // factor) * factor)

    def _fits(self, side: Side, size: int, sides: dict[str, int]) -> bool:
        """Check a side's size: the declared one, the same as before for the same name, and a multiple."""
        if isinstance(side, int):
            return size == side
        name, _, number = side.partition("=")
        wanted = sides.setdefault(name, int(number) if number else size)
        return size == wanted and size > 0 and size % self.multiples.get(name, 1) == 0

    def _conditions(self) -> str:
        return "".join(f", {name} a multiple of {factor}" for name, factor in self.multiples.items())


def _axis(side: Side) -> str:
    number = str(side).rpartition("=")[2]
    return number if number.isdigit() else "_"


def described(found: Layout | str) -> str:
    """Return a layout as text."""
    return found if isinstance(found, str) else f"{found[0]} {found[1]}"
