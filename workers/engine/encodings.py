"""What an encoder made of its inputs, kept for the next prompt that has the same: an image in two chats, once.

A loaded model has one of its own, on its device, bounded by bytes; what was used least recently goes. Keys are framed
hashes of all that an encoding depends on, and of the tenant: nobody can find out what others sent.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import ModelUnavailable
from penstock.framed import digest
from penstock.models import Model
from penstock.processors.base import Prompt

T = TypeVar("T")

#: What a model's encodings may take unless its option `encoder_cache_bytes` says it: some 50 images of 4096 float16
#: numbers for each of 576 patches.
DEFAULT_BYTES = 256 * 2**20

#: Of a job's metrics, and of what `/metrics` counts.
HITS, MISSES = "encoder_hits", "encoder_misses"


@dataclass(frozen=True, slots=True)
class Encoded(Generic[T]):
    """An encoding. It is shared: nobody may write into it."""

    value: T
    #: Whether it was there, or a neighbour in the same call made it.
    hit: bool


class Encodings(Generic[T]):
    """The latest encodings of one encoder. Safe to use from many threads."""

    def __init__(self, limit_bytes: int, *, size_of: Callable[[T], int]) -> None:
        """Hold encodings of at most so many bytes, 0 for none; `size_of` returns those of one."""
        self._limit_bytes = limit_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        #: Least recently used first, each with its size.
        self._kept: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """What they take."""
        return self._bytes

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._kept)

    def encode(self, keys: Sequence[bytes], make: Callable[[Sequence[int]], Sequence[T]]) -> list[Encoded[T]]:
        """Return the encoding of each key. `make` gets the positions of those that are missing, each key once.

        It is not called if none is, and what it raises is raised: then nothing was kept. An encoding that is larger
        than the limit is not kept either.
        """
        found = self._found(keys)
        missing = [at for at, key in enumerate(keys) if key not in found and keys.index(key) == at]
        made = dict(zip((keys[at] for at in missing), make(missing), strict=True)) if missing else {}
        for key, value in made.items():
            self._keep(key, value)
        firsts = set(missing)
        return [Encoded(found[key] if key in found else made[key], at not in firsts) for at, key in enumerate(keys)]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _found(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        with self._lock:
            found = {key: self._kept[key][0] for key in keys if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
            return found

    def _keep(self, key: bytes, value: T) -> None:
        size = self._size_of(value)
        if size > self._limit_bytes:
            return
        with self._lock:
            if key in self._kept:  # another thread was faster
                return
            self._kept[key] = value, size
            self._bytes += size
            while self._bytes > self._limit_bytes:
                _, (_, freed) = self._kept.popitem(last=False)
                self._bytes -= freed


def encoding_key(model: Model, prompt: Prompt, *values: Any) -> bytes:
    """Return the key of what an encoder of a model makes of values (arrays, sizes, ...) of a prompt's tenant."""
    about = model.model_dump(mode="json", include={"name", "revision", "source", "dtype", "options"})
    return digest("encoding", about, prompt.tenant, values)


def limit_bytes(model: Model, *, default: int = DEFAULT_BYTES) -> int:
    """Return what a model's encodings may take; raise `ModelUnavailable` for an option that is no number of bytes."""
    limit = model.options.get("encoder_cache_bytes", default)
    if type(limit) is not int or limit < 0:
        raise ModelUnavailable(f"`options.encoder_cache_bytes` is a number of bytes, 0 for none, not {limit!r}")
    return limit


def counted(encoded: Iterable[Encoded[Any]]) -> Mapping[str, int]:
    """Return how many were found and how many made: an output's `counts`."""
    hits = [one.hit for one in encoded]
    return {HITS: sum(hits), MISSES: len(hits) - sum(hits)}
