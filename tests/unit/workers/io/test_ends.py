"""Messages between a worker and its IO processes: any array arrives as it was, and nonsense never does."""

from __future__ import annotations

import gc
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from penstock.functions.wire import SMALL_BYTES, Closed, Memory, TooMuch, Unsendable, Wire, WireError
from penstock.workers.io.ends import end_to_process, end_to_worker, failure
from tests.support.polling import wait_for

MIB = 2**20
DTYPES = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(endianness="?"), arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?"), arrays.complex_number_dtypes(endianness="?"),
)  # fmt: skip
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@contextmanager
def conversation(max_bytes: int = 64 * MIB) -> Iterator[tuple[Wire, Wire]]:
    """The worker's end and the IO process's."""
    ours, its = socket.socketpair()
    one, other = end_to_process(ours, Memory(max_bytes)), end_to_worker(its.detach(), max_bytes)
    try:
        yield one, other
    finally:
        for end in (one, other):
            end.close()


def sent(one: Wire, *args: Any, **fields: Any) -> threading.Thread:
    """Send a message in a thread: a large one is there when it was received."""
    thread = threading.Thread(target=one.send, args=args, kwargs=fields)
    thread.start()
    return thread


def crossed(data: dict[str, Any]) -> dict[str, Any]:
    with conversation() as (one, other):
        sending = sent(one, "x", data)
        arrived: dict[str, Any] = other.receive()["value"]
        sending.join()
        return arrived


@given(st.dictionaries(st.text(max_size=5), arrays.arrays(DTYPES, SHAPES), max_size=3))
def test_arrays_arrive_as_they_were(data: dict[str, np.ndarray]) -> None:
    arrived = crossed(data)
    assert arrived.keys() == data.keys()
    for name, array in data.items():
        assert (arrived[name].dtype, arrived[name].shape) == (array.dtype, array.shape)
        assert arrived[name].tobytes() == array.tobytes()
        assert arrived[name].flags.writeable


@pytest.mark.parametrize("size", [SMALL_BYTES - 64, SMALL_BYTES, SMALL_BYTES + 64, 5 * MIB])
def test_arrays_of_any_size_arrive(size: int) -> None:
    array = np.random.default_rng(1).integers(0, 255, size, np.uint8)
    arrived = crossed({"a": array, "b": array[::-2], "c": np.float32(3), "text": "wörld", "list": [1, None, {"x": 2}]})
    np.testing.assert_array_equal(arrived["a"], array)
    np.testing.assert_array_equal(arrived["b"], array[::-2])
    assert (float(arrived["c"]), arrived["text"], arrived["list"]) == (3, "wörld", [1, None, {"x": 2}])


def test_as_many_arrays_as_a_message_has_arrive() -> None:
    arrived = crossed({str(number): np.array([number]) for number in range(4096)})
    assert [int(array[0]) for array in arrived.values()] == list(range(4096))


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]), np.array(["text"]), np.array(["2020-01-01"], "datetime64[D]"), {1, 2}, b"bytes", object(),
        [np.zeros(1)], "\ud800",
    ],
)  # fmt: skip
def test_what_is_neither_numbers_nor_json_does_not_cross(value: Any) -> None:
    with conversation() as (one, other):
        with pytest.raises(Unsendable):
            one.send("x", {"value": value})
        one.send("still", {"value": 1})
        assert other.receive()["kind"] == "still"


def test_more_than_its_memory_does_not_cross() -> None:
    with conversation(MIB) as (one, _), pytest.raises(Unsendable, match="exceeds 1 MiB"):
        one.send("x", {"a": np.zeros(2 * MIB, np.uint8)})


def test_more_arrays_than_a_message_has_do_not_cross() -> None:
    with conversation() as (one, _), pytest.raises(Unsendable, match="5,000 arrays"):
        one.send("x", {str(number): np.zeros(1) for number in range(5000)})


def test_an_end_is_told() -> None:
    with conversation() as (one, other):
        one.close()
        with pytest.raises(Closed):
            other.receive()
        with pytest.raises(Closed):
            other.send("x")


def test_a_process_has_no_more_on_its_way_than_its_limit_in_all_its_conversations() -> None:
    """A body counts until the last of its arrays is gone."""
    memory, size = Memory(100 * MIB), 40 * MIB
    pairs = [socket.socketpair() for _ in range(2)]
    ours = [end_to_process(end, memory) for end, _ in pairs]
    its = [end_to_worker(end.detach(), 100 * MIB) for _, end in pairs]

    def arrived(number: int) -> Any:
        sending = sent(its[number], "x", {"a": np.full(size, number, np.uint8)})
        try:
            return ours[number].receive()["value"]["a"]
        finally:
            sending.join()

    parts = [arrived(0)[:10], arrived(1)[:10]]  # a part holds all of it
    del parts[0]
    gc.collect()
    parts.append(arrived(0)[:10])
    assert [part[0] for part in parts] == [1, 0]
    sending = sent_until_closed(its[1], {"a": np.ones(size, np.uint8)})
    with pytest.raises(TooMuch) as caught:
        ours[1].receive()
    assert failure(caught.value).detail == "the processor's prompts on their way exceed 100 MiB (io_memory_bytes)"
    for end in (*ours, *its):
        end.shut()
    sending.join()
    for end in (*ours, *its):
        end.close()


def sent_until_closed(end: Wire, value: Any) -> threading.Thread:
    def send() -> None:
        with pytest.raises(Closed):
            end.send("x", value)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_wait_ends_when_its_tick_says_so() -> None:
    def tick() -> None:
        raise TimeoutError

    with conversation() as (one, _), pytest.raises(TimeoutError):
        one.receive(tick=tick)


def test_a_wait_in_the_midst_of_a_message_ends_when_its_tick_says_so() -> None:
    """A process may stop while it sends, or never read."""
    ticks = list[None]()

    def tick() -> None:
        ticks.append(None)
        if len(ticks) > 4:
            raise TimeoutError

    ours, theirs = socket.socketpair()
    end = end_to_process(ours, Memory(8 * MIB))
    with theirs:
        theirs.sendall(raw(header({}), b"", 4 * MIB))
        with pytest.raises(TimeoutError):
            end.receive(tick=tick)
        ticks.clear()
        with pytest.raises(TimeoutError):
            end.send("x", {"a": np.zeros(4 * MIB, np.uint8)}, tick=tick)
    end.close()


def header(arrays: Any, **fields: Any) -> bytes:
    value = dict.fromkeys(arrays) if isinstance(arrays, dict) else {}
    rows = [[[place], *row] for place, row in arrays.items()] if isinstance(arrays, dict) else arrays
    return json.dumps({"kind": "x", "value": value, "arrays": rows, **fields}).encode()


def raw(head: bytes, body: bytes, body_bytes: int | None = None) -> bytes:
    return struct.pack("<IQ", len(head), len(body) if body_bytes is None else body_bytes) + head + body


NONSENSE = [
    b"\x07" * 64,
    b"\x00" + b"\xff" * 12,
    raw(b"", b""),
    raw(b"{}", b""),
    raw(b"[]", b""),
    raw(b"[" * 100_000, b""),
    raw(b"\xff\xfe\n\xff", b""),
    raw(header({}, kind=7), b""),
    raw(header({}, value=[1]), b""),
    raw(header({}, value=None), b""),
    raw(header(7), b""),
    raw(header([7]), b""),
    raw(header([[7, "<f4", [1]]]), b"1234"),
    raw(header([[["x"], "<f4", [1]]]), b"1234"),
    raw(header([[[[]], "<f4", [1]]]), b"1234"),
    raw(header([[[], "<f4", [1]]]), b"1234"),
    raw(header({"a": ["<f4", [1]]}, value={"a": 1}), b"1234"),
    raw(header([[["a", "b"], "<f4", [1]]], value={"a": {"b": None}}), b"1234"),
    raw(header({"a": ["<f4", [2]]}), b"1234"),
    raw(header({"a": ["<f4", [1]]}), b"12345678"),
    raw(header({"a": ["<f4", [-1]]}), b"1234"),
    raw(header({"a": ["<f4", [True]]}), b"1234"),
    raw(header({"a": ["<f4", [1.0]]}), b"1234"),
    raw(header({"a": ["<f4", [10**30, 10**30]]}), b"1234"),
    raw(header({"a": ["<f4", [0, 10**30]]}), b""),
    raw(header({"a": ["<f4", [1] * 100]}), b"1234"),
    raw(header({"a": ["|O", [1]]}), b"12345678"),
    raw(header({"a": ["|O8", [1]]}), b"12345678"),
    raw(header({"a": ["<f3", [1]]}), b"123"),
    raw(header({"a": ["bytes", [4]]}), b"1234"),
    raw(header({"a": ["<f4"]}), b"1234"),
    raw(header({str(n): ["|u1", [0]] for n in range(5000)}), b""),
    raw(header({"a": ["|u1", [100]]}), b"", 100),
    raw(header({}), b"", 2**60),
    raw(header({"a": ["|u1", [2 * MIB]]}), b"", 2 * MIB),
    struct.pack("<IQ", 2**31, 0),
]  # fmt: skip


@pytest.mark.parametrize("sent", NONSENSE)
def test_nonsense_is_refused(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    end = end_to_process(ours, Memory(MIB))
    with theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((WireError, Closed)):
            end.receive()
    end.close()


def test_an_end_without_memory_receives_small_bodies_only() -> None:
    ours, theirs = socket.socketpair()
    end = end_to_process(ours)
    with theirs:
        theirs.sendall(raw(header({"a": ["|u1", [SMALL_BYTES]]}), bytes(SMALL_BYTES)))
        assert end.receive()["value"]["a"].shape == (SMALL_BYTES,)
        theirs.sendall(raw(header({"a": ["|u1", [SMALL_BYTES + 1]]}), bytes(SMALL_BYTES + 1)))
        with pytest.raises(WireError, match="a message of"):
            end.receive()
    end.close()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_waited_for(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    end = end_to_process(ours, Memory(MIB))
    with theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((WireError, Closed)):
            end.receive()
    end.close()


def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with Path("/dev/null").open() as file:
        for number in (1, 3):
            for message in (raw(header({}), b""), raw(header({}), b"", 1), b"\x07" * 64, b"\x00"):
                ours, theirs = socket.socketpair()
                end = end_to_process(ours, Memory(MIB))
                with theirs:
                    socket.send_fds(theirs, [message], [file.fileno()] * number)
                    theirs.shutdown(socket.SHUT_WR)
                    with pytest.raises((WireError, Closed)):
                        end.receive()
                end.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_header_cannot_name_a_descriptor() -> None:
    ours, its = socket.socketpair()
    end = end_to_worker(its.detach())
    with ours:
        ours.sendall(raw(header({}, descriptor=0), b""))
        assert end.receive()["descriptor"] is None
    end.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20_000)), min_size=1, max_size=12))
def test_messages_that_arrive_together_keep_their_own_descriptors(sent: list[tuple[bool, int]]) -> None:
    with conversation() as (one, other), Path("/dev/null").open() as file:
        writer = threading.Thread(
            target=lambda: [
                one.send(
                    str(number),
                    {"a": np.full(size * 3, number, np.uint8)},
                    descriptor=file.fileno() if carries else None,
                    filling="x" * size,
                )
                for number, (carries, size) in enumerate(sent)
            ]
        )
        writer.start()
        for number, (carries, size) in enumerate(sent):
            message = other.receive()
            assert (message["kind"], len(message["filling"])) == (str(number), size)
            np.testing.assert_array_equal(message["value"]["a"], np.full(size * 3, number, np.uint8))
            descriptor = message["descriptor"]
            assert (descriptor is not None) == carries
            if descriptor is not None:
                assert os.path.sameopenfile(descriptor, file.fileno())
                assert not os.get_inheritable(descriptor)  # no program that a processor starts gets it
                os.close(descriptor)
        writer.join()


def test_what_an_idle_process_sends_on_top_of_its_message_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    end = end_to_process(ours, Memory(MIB))
    with theirs:
        theirs.sendall(raw(header({}), b""))
        end.receive()
        assert not end.readable()
        theirs.sendall(raw(header({}), b"") * 2)
        end.receive()
        assert end.readable()  # although nothing may be left in the socket
    end.close()


def test_a_shut_connection_ends_the_waits_at_both_ends() -> None:
    with conversation() as (one, other):
        waits = [threading.Thread(target=pytest.raises, args=(Closed, end.receive)) for end in (one, other)]
        for wait in waits:
            wait.start()
        one.shut()
        wait_for(lambda: not any(wait.is_alive() for wait in waits), "a wait goes on")


def test_a_fork_that_closes_its_copy_leaves_the_connection() -> None:
    with conversation() as (one, other):
        copy = end_to_worker(os.dup(other.fileno()))
        copy.close()
        one.send("x")
        assert other.receive()["kind"] == "x"
