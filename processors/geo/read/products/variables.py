"""Variables of a NetCDF, HDF5 or Zarr file, as CF sees them: arrays with named dimensions and attributes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InputError, MediaUnreadable
from penstock.json_body import shown
from penstock.processors.geo.read.raster import MAX_BLOCK_BYTES

#: Variables and groups of a file, at most.
MAX_OBJECTS: Final = 10_000
#: Message of h5py with its reason, without paths and names of functions.
_REASON: Final = re.compile(r"(?:Unable to|Can't) [\w ]+ \(([\w ,-]+)\)")
#: Elements of a coordinate or a list of names, at most.
_MAX_ELEMENTS: Final = 2**24


class UnreadError(Exception):
    """A variable that is no scene; the text is a clause whose subject is the variable."""


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """An array in a file."""

    #: Names of its groups and its own, such as `measurements/r10m/b02`.
    path: str
    #: Names of its dimensions; an empty one has no name.
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    #: Shape of the blocks in which the file stores it.
    chunks: tuple[int, ...]
    attributes: Mapping[str, Any]
    #: The library's array, of which a tuple of slices and integers gives a part.
    array: Any

    @property
    def name(self) -> str:
        """Its own name, without its groups."""
        return self.path.rpartition("/")[2]

    @property
    def group(self) -> str:
        """Path of its group; empty for the file's root."""
        return self.path.rpartition("/")[0]

    @property
    def label(self) -> str:
        """Its path, for a sentence."""
        return shown(self.path)

    def text(self, name: str) -> str:
        """Return an attribute as text; empty if there is none, or none of text."""
        return as_text(self.attributes.get(name))

    def numbers(self, name: str) -> list[float]:
        """Return an attribute as numbers; empty if there is none, or none of numbers."""
        return as_numbers(self.attributes.get(name))

    def read(self) -> npt.NDArray[Any]:
        """Return all of a small variable. Raises `MediaUnreadable` for a damaged or a large one."""
        if int(np.prod(self.shape, dtype=object)) > _MAX_ELEMENTS:
            raise MediaUnreadable(f"The variable {self.label} is no coordinate: it has the shape {self.shape}.")
        for what, shape in (("", self.shape), ("blocks of ", self.chunks)):
            size = int(np.prod(shape, dtype=object)) * self.dtype.itemsize
            if size > MAX_BLOCK_BYTES:
                raise MediaUnreadable(
                    f"The variable {self.label} has {what}{size:,} bytes; a coordinate or a list of names may have "
                    f"{MAX_BLOCK_BYTES:,}."
                )
        with undamaged(f"The variable {self.label} cannot be read"):
            return np.asarray(self.array[...])


@dataclass(frozen=True, slots=True, eq=False)
class Variables:
    """All variables of an open file."""

    #: By path.
    each: Mapping[str, Variable]
    #: Attributes of the groups by path; the root's is empty.
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    #: Sentences without a full stop about arrays that are left out.
    unread: tuple[str, ...] = ()

    def find(self, name: str, near: Variable) -> Variable | None:
        """Return the variable that a name in a group means: in this group, else in the nearest around it."""
        group = near.group
        if name.startswith("/"):
            return self.each.get(name.strip("/"))
        while True:
            found = self.each.get(f"{group}/{name}" if group else name)
            if found is not None or not group:
                return found
            group = group.rpartition("/")[0]

    def inherited(self, name: str, near: Variable) -> Any | None:
        """Return an attribute of a variable, or else of the nearest group around it that has it."""
        if name in near.attributes:
            return near.attributes[name]
        group = near.group
        while True:
            found = self.attributes.get(group, {})
            if name in found or not group:
                return found.get(name)
            group = group.rpartition("/")[0]


@contextmanager
def undamaged(what: str) -> Iterator[None]:
    """Translate the errors of h5py, SciPy, zarr and numpy for a user's file to `MediaUnreadable`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        # A damaged file makes these libraries raise nearly anything: struct.error, KeyError, AttributeError.
        reason = reason_of(error)
        raise MediaUnreadable(f"{what}; it is damaged or incomplete{reason and f' ({reason})'}.") from error


def reason_of(error: Exception) -> str:
    """Return the reason in a message of h5py, `Unable to open file (file signature not found)`; else nothing.

    Other libraries' messages are for programmers.
    """
    found = _REASON.match(str(error)) if isinstance(error, OSError | RuntimeError) else None
    return found[1] if found else ""


def as_text(value: Any) -> str:
    """Return an attribute's text: a string, bytes, or an array with one of them; empty for anything else."""
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(-1)[0]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return str(value).strip("\0 \n") if isinstance(value, str) else ""


def as_numbers(value: Any) -> list[float]:
    """Return an attribute's numbers; empty for anything else."""
    if value is None or isinstance(value, bool | str | bytes):
        return []
    try:
        return [float(each) for each in np.asarray(value).reshape(-1)[:100]]
    except (TypeError, ValueError, OverflowError):  # JSON has integers beyond all real numbers
        return []


@contextmanager
def library(formats: str, extra: str) -> Iterator[None]:
    """Translate a failed import of a library to `MediaUnreadable`, with the extra that has it."""
    try:
        yield
    except ImportError as error:
        raise MediaUnreadable(
            f"The worker has no reader of {formats}: its operator can install one (pip install '.[{extra}]'). Or "
            "send the scene as a GeoTIFF."
        ) from error
