from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.functions.wire import MAX_ARRAYS, Closed, Unsendable, Wire, WireError, prepare

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    first, second = socket.socketpair()
    with first, second:
        yield first, second


@pytest.fixture
def wires(ends: Ends) -> tuple[Wire, Wire]:
    return Wire(ends[0]), Wire(ends[1])


def sent(wires: tuple[Wire, Wire], value: Any) -> Any:
    here, there = wires
    thread = threading.Thread(target=here.send, args=("call", value), kwargs={"id": 7})
    thread.start()
    message = there.receive()
    thread.join()
    assert (message["kind"], message["id"]) == ("call", 7)
    return message["value"]


@pytest.mark.parametrize("side", [1, 300])  # small, and counted
def test_values_with_arrays_and_bytes_arrive_as_they_were(wires: tuple[Wire, Wire], side: int) -> None:
    value = {"a": [np.arange(side * side * 3).reshape(side, side, 3), {"b": b"x" * side}], "c": None, "d": "ü\ud800"}
    found = sent(wires, value)
    np.testing.assert_array_equal(found["a"][0], value["a"][0])  # type: ignore[index]
    assert (found["a"][1], found["c"], found["d"]) == ({"b": b"x" * side}, None, "ü\ud800")


def test_empty_arrays_and_numbers_of_numpy_arrive(wires: tuple[Wire, Wire]) -> None:
    found = sent(wires, [np.empty((0, 3), np.float32), np.float64(2.5)])
    assert (found[0].shape, found[0].dtype, found[1]) == ((0, 3), np.float32, 2.5)


def test_a_received_array_may_be_changed_without_changing_the_senders_memory(wires: tuple[Wire, Wire]) -> None:
    found = sent(wires, {"a": np.zeros((400, 400))})
    found["a"][:] = 1
    assert found["a"].sum() == 160_000


def test_objects_are_refused_before_anything_is_sent(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    with pytest.raises(TypeError):
        here.send("call", {"a": object()})
    with pytest.raises(TypeError, match="only numbers and booleans"):
        here.send("call", np.array(["text"]))
    here.send("call", 1)
    assert there.receive()["value"] == 1


_PREFIX = struct.Struct("<IQ")


def _raw(header: Any, body: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return _PREFIX.pack(len(text), len(body) if size is None else size) + text + body


@pytest.mark.parametrize(
    "raw",
    [
        _PREFIX.pack(2**31, 0),
        _PREFIX.pack(10, 2**40),
        _raw(b"no json"),
        _raw([1]),
        _raw({"value": 1}),
        _raw({"kind": "a", "value": None, "arrays": [[["x"], "<f4", [1]]]}, b"1234"),
        _raw({"kind": "a", "value": {"x": None}, "arrays": [[["x"], "|O8", [1]]]}, b"12345678"),
        _raw({"kind": "a", "value": {"x": None}, "arrays": [[["x"], "<f4", [-1]]]}, b"1234"),
        _raw({"kind": "a", "value": {"x": None}, "arrays": [[["x"], "<f4", [2]]]}, b"1234"),
        _raw({"kind": "a", "value": {"x": None}, "arrays": [[["x"], "<f4", [1]]]}, b"12345678"),
        _raw({"kind": "a", "value": {"x": 1}, "arrays": [[["x"], "<f4", [1]]]}, b"1234"),
        _raw({"kind": "a", "value": None, "arrays": 3}),
    ],
)
def test_messages_that_break_the_protocol_are_refused(ends: Ends, raw: bytes) -> None:
    first, second = ends
    first.sendall(raw)
    with pytest.raises(WireError):
        Wire(second).receive()


def test_a_descriptor_is_refused_and_closed(ends: Ends) -> None:
    first, second = ends
    ours, theirs = socket.socketpair()
    with ours:
        socket.send_fds(first, [_raw({"kind": "a", "value": None})], [theirs.fileno()])
        theirs.close()
        with pytest.raises(WireError, match="descriptor"):
            Wire(second).receive()
        assert ours.recv(1) == b""  # no copy is left


def test_a_silence_that_is_too_long_is_the_end(ends: Ends) -> None:
    first, second = ends
    wire = Wire(second, stall_s=0.05)
    first.sendall(_PREFIX.pack(10, 0))
    with pytest.raises(Closed):
        wire.receive()
    with pytest.raises(Closed):
        wire.send("call", np.zeros(10_000_000, np.uint8))


def test_prepared_values_arrive_in_one_message(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    here.send_prepared("prompts", [prepare({"a": np.full(number, number)}) for number in range(3)], ids=[7, 8, 9])
    message = there.receive()
    assert [each["a"].tolist() for each in message["value"]] == [[], [1], [2, 2]]
    assert (message["kind"], message["ids"]) == ("prompts", [7, 8, 9])


def test_a_message_with_too_many_arrays_is_refused_before_anything_is_sent(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    one = prepare([np.ones(1)] * (MAX_ARRAYS // 2 + 1))
    with pytest.raises(Unsendable, match="4,098 arrays"):
        here.send_prepared("batch", [one, one])
    here.send_prepared("batch", [one])
    assert len(there.receive()["value"][0]) == MAX_ARRAYS // 2 + 1


def test_the_end_of_the_other_side_is_told(wires: tuple[Wire, Wire]) -> None:
    here, there = wires
    here.close()
    with pytest.raises(Closed):
        there.receive()
