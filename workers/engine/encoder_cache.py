"""A cache of encodings: an image that appears in two chats is encoded once.

Each loaded model has a cache of its own, on its device, limited in bytes; the least recently used encoding is dropped
first. A key is the hash of everything that an encoding depends on and of the tenant: no tenant can detect another's
inputs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.storage.canonical_hash import digest

T = TypeVar("T")

#: Bytes of a model's encodings unless the option `encoder_cache_bytes` is set: some 50 images of 576 patches, each of
#: 4096 float16 numbers.
DEFAULT_BYTES = 256 * 2**20

#: Names of counters, in a job's metrics and in `/metrics`.
HITS, MISSES = "encoder_hits", "encoder_misses"


@dataclass(frozen=True, slots=True)
class Encoded(Generic[T]):
    """A cached encoding, which is shared: callers must not write into it."""

    value: T
    #: True if the encoding was cached or made for an earlier key of the same call.
    hit: bool


class EncoderCache(Generic[T]):
    """The most recently used encodings of one encoder. Safe to use from many threads."""

    def __init__(self, limit_bytes: int, *, size_of: Callable[[T], int]) -> None:
        """Make a cache of at most so many bytes, 0 for none; `size_of` returns the bytes of an encoding."""
        self._limit_bytes = limit_bytes
        self._size_of = size_of
        self._lock = threading.Lock()
        #: Least recently used first, each with its size.
        self._kept: OrderedDict[bytes, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of all cached encodings."""
        return self._bytes

    def __len__(self) -> int:
        """Return the number of cached encodings."""
        return len(self._kept)

    def encode(self, keys: Sequence[bytes], make: Callable[[Sequence[int]], Sequence[T]]) -> list[Encoded[T]]:
        """Return the encoding of each key. `make` gets the positions of the missing keys, each key once.

        `make` is not called if no key is missing; after an error of `make`, which is raised, nothing new is cached. An
        encoding larger than the limit is not cached either.
        """
        found = self._found(keys)
        missing = [at for at, key in enumerate(keys) if key not in found and keys.index(key) == at]
        made = dict(zip((keys[at] for at in missing), make(missing), strict=True)) if missing else {}
        for key, value in made.items():
            self._keep(key, value)
        firsts = set(missing)
        return [Encoded(found[key] if key in found else made[key], at not in firsts) for at, key in enumerate(keys)]

    def clear(self) -> None:
        """Drop all encodings."""
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
    """Return the cache key of a model's encoding of values (arrays, sizes, ...) of a prompt's tenant."""
    about = model.model_dump(mode="json", include={"name", "revision", "source", "dtype", "options"})
    return digest("encoding", about, prompt.tenant, values)


def limit_bytes(model: Model, *, default: int = DEFAULT_BYTES) -> int:
    """Return the limit of a model's encodings in bytes; raise `ModelUnavailable` for a wrong option."""
    limit = model.options.get("encoder_cache_bytes", default)
    if type(limit) is not int or limit < 0:
        raise ModelUnavailable(f"`options.encoder_cache_bytes` is a number of bytes, 0 for none, not {limit!r}")
    return limit


def counted(encoded: Iterable[Encoded[Any]]) -> Mapping[str, int]:
    """Return the numbers of hits and misses: an output's `counts`."""
    hits = [one.hit for one in encoded]
    return {HITS: sum(hits), MISSES: len(hits) - sum(hits)}
