"""Framed hashes: a digest names one value. Frames can be read back, which is why no two values share one."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.storage.canonical_hash import digest, frames

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=40)
some_array = arrays.arrays(
    st.sampled_from(["<f4", ">f4", "<f8", "<i8", "|u1", "|b1", "<c8", "<u2"]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0),
)
values = st.recursive(
    plain | some_array,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def test_what_runs_together_elsewhere_is_apart() -> None:
    looks_alike: list[Any] = [
        [1, 2], [[1], 2], [[1, 2]], [1, [2]], ["1", 2], "12", ["ab", "c"], ["a", "bc"], ["abc"], "abc", b"abc", [], {},
        None, "", b"", [None], [[]], True, 1, 1.0, "1", "True", False, 0, 0.0, -0.0, {"a": 1}, ["a", 1], [["a", 1]],
        {"a": [1]}, {"a": {"b": 1}}, {"ab": 1}, np.float32(1), np.int64(1), np.array([1, 2]), np.array([[1, 2]]),
        np.array([1, 2], np.int32), np.array([1, 2], ">i8"), np.array([1.0, 2.0]), np.zeros((0, 3)), np.zeros((3, 0)),
        np.array([1, 2]).tobytes(),
    ]  # fmt: skip
    assert len({digest(value) for value in looks_alike}) == len(looks_alike)
    assert digest([1, 2]) != digest(1, 2) != digest([1], 2)


def test_what_is_the_same_stays_the_same() -> None:
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest((1, 2)) == digest([1, 2])
    column = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert digest(column.T) == digest(np.ascontiguousarray(column.T)) != digest(column)
    assert digest(column[:, ::2]) == digest(column[:, ::2].copy())
    # Written out by hand: a cache that outlives a release must find what it kept.
    assert digest("a").hex() == "01c4185dcfc8bbd44b795c6ef6a184db4fb5186b268701edd999513ec2622a20"


@given(values)
@example(float("nan"))
@example("\ud800")
def test_a_frame_can_be_read_back(value: Any) -> None:
    read, rest = unframed(b"".join(frames(value)))
    assert not rest
    assert shown(read) == shown(value)


@given(values, values)
def test_two_values_share_a_digest_only_if_they_are_one(one: Any, other: Any) -> None:
    assert (digest(one) == digest(other)) == (shown(one) == shown(other))


@pytest.mark.parametrize("value", [object(), {1}, {1: 2}, np.array([object()]), [lambda: 1]])
def test_what_has_no_bytes_of_its_own_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be digested"):
        digest(value)


def unframed(data: bytes) -> tuple[Any, bytes]:
    """Read a value off the front of its frame; return it and what follows."""
    kind, length = struct.unpack(">cQ", data[:9])
    data = data[9:]
    contents = data[:length]
    match kind:
        case b"n":
            return None, data
        case b"t" | b"f":
            return kind == b"t", data
        case b"i":
            return int(contents), data[length:]
        case b"d":
            return struct.unpack(">d", contents)[0], data[length:]
        case b"s":
            return contents.decode("utf-8", "surrogatepass"), data[length:]
        case b"b":
            return contents, data[length:]
    parts = []
    for _ in range(length):
        part, data = unframed(data)
        parts.append(part)
    if kind == b"o":
        return dict(zip(parts[::2], parts[1::2], strict=True)), data
    if kind == b"a":
        dtype, shape, elements = parts
        return np.frombuffer(elements, dtype).reshape(shape), data
    assert kind == b"l"
    return parts, data


def shown(value: Any) -> str:
    """Return a text that is equal for values that are one and the same, and only then."""
    match value:
        case bool() | None | bytes() | int():
            return repr(value)
        case float():
            return f"float {struct.pack('>d', value).hex()}"
        case str():
            return json.dumps(value)
        case list():
            return f"[{', '.join(map(shown, value))}]"
        case dict():
            return f"{{{', '.join(f'{shown(name)}: {shown(value[name])}' for name in sorted(value))}}}"
    return f"array {value.dtype.str} {value.shape} {value.tobytes().hex()}"
