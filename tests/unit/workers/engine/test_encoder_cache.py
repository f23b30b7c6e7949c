"""Encodings in the cache: computed once for each key, bounded by bytes, and found by their tenant alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Array, Prompt
from penstock.workers.engine.encoder_cache import DEFAULT_BYTES, EncoderCache, counted, encoding_key, limit_bytes

Make = Callable[[Sequence[int]], Sequence[Array]]


def encodings(limit: int = 100) -> EncoderCache[Array]:
    return EncoderCache(limit, size_of=lambda array: int(array.nbytes))


def making(keys: Sequence[bytes], *, size: int = 10) -> tuple[Make, list[bytes]]:
    """Return an encoder, and the keys of what it has made."""
    made: list[bytes] = []

    def make(positions: Sequence[int]) -> list[Array]:
        made.extend(keys[at] for at in positions)
        return [np.full(size, keys[at][0], np.uint8) for at in positions]

    return make, made


def a_model(**fields: object) -> Model:
    common = {"title": "M", "runner": "fake", "processor": "none", "source": "/m", "revision": "1"}
    return Model.model_validate({"name": "m", **common, **fields})


def test_each_key_is_encoded_once() -> None:
    kept = encodings()
    keys = [b"a", b"b", b"a"]
    make, made = making(keys)
    first = kept.encode(keys, make)
    assert made == [b"a", b"b"]
    assert [one.hit for one in first] == [False, False, True]
    assert [int(one.value[0]) for one in first] == list(b"aba")
    again = kept.encode(keys, make)
    assert made == [b"a", b"b"]
    assert all(one.hit for one in again)
    assert again[0].value is first[0].value
    assert counted([*first, *again]) == {"encoder_hits": 4, "encoder_misses": 2}
    assert (len(kept), kept.held_bytes) == (2, 20)


def test_what_was_used_least_recently_goes() -> None:
    kept = encodings(limit=30)
    for key in (b"a", b"b", b"c", b"a", b"d"):
        kept.encode([key], making([key])[0])
    make, made = making([b"a", b"c", b"d", b"b"])
    kept.encode([b"a", b"c", b"d", b"b"], make)
    assert made == [b"b"]
    assert kept.held_bytes == 30


def test_what_is_too_large_is_made_each_time() -> None:
    kept = encodings(limit=9)
    make, made = making([b"a"])
    for _ in range(2):
        assert kept.encode([b"a"], make)[0].hit is False
    assert made == [b"a", b"a"]
    assert (len(kept), kept.held_bytes) == (0, 0)


def test_what_failed_is_tried_again() -> None:
    kept = encodings()

    def fail(_positions: Sequence[int]) -> Sequence[Array]:
        raise MemoryError

    with pytest.raises(MemoryError):
        kept.encode([b"a"], fail)
    assert kept.encode([b"a"], making([b"a"])[0])[0].hit is False


def test_many_threads_keep_within_the_limit() -> None:
    kept, start = encodings(limit=50), threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for at in range(300):
            key = bytes([(seed * 7 + at * 13) % 11])
            assert kept.encode([key], making([key])[0])[0].value[0] == key[0]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert kept.held_bytes == 10 * len(kept) == 50
    kept.clear()
    assert (kept.held_bytes, len(kept)) == (0, 0)


def test_a_key_holds_the_model_the_tenant_and_the_bytes() -> None:
    pixels = np.zeros((3, 2, 2), np.float32)
    prompt = Prompt({"pixels": pixels}, tenant="one")
    keys = [
        encoding_key(a_model(), prompt, pixels),
        encoding_key(a_model(name="n"), prompt, pixels),
        encoding_key(a_model(revision="2"), prompt, pixels),
        encoding_key(a_model(options={"size": 1}), prompt, pixels),
        encoding_key(a_model(dtype="bfloat16"), prompt, pixels),
        encoding_key(a_model(), Prompt({}, tenant="two"), pixels),
        encoding_key(a_model(), prompt, pixels.reshape(2, 3, 2)),
        encoding_key(a_model(), prompt, pixels, [2, 2]),
        encoding_key(a_model(), prompt, pixels + 1),
    ]
    assert len(set(keys)) == len(keys)
    assert encoding_key(a_model(title="Another"), prompt, pixels.copy()) == keys[0]


def test_the_limit_is_an_option_in_bytes() -> None:
    assert limit_bytes(a_model()) == DEFAULT_BYTES
    assert limit_bytes(a_model(options={"encoder_cache_bytes": 0})) == 0
    for wrong in ("1 GB", -1, True, 1.5):
        with pytest.raises(ModelUnavailable, match="encoder_cache_bytes"):
            limit_bytes(a_model(options={"encoder_cache_bytes": wrong}))
