"""Messages between a worker and its IO processes: any array arrives as it was, and nonsense never does."""

from __future__ import annotations

import gc
import json
import mmap
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

from penstock.errors import DeviceLost, Fenced, InvalidInput, Issue, MediaTooLarge, PenstockError, ProcessorFailed
from penstock.functions.memory import KEPT_BYTES, SEALABLE, Borrower, Lender, UnsafeMemory
from penstock.workers.io import reports
from penstock.workers.io.channel import INLINE_BYTES, Channel, Disconnected, Memory, Message
from tests.support.polling import wait_for

MIB = 2**20
DTYPES = st.one_of(
    arrays.boolean_dtypes(), arrays.integer_dtypes(endianness="?"), arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?"), arrays.complex_number_dtypes(endianness="?"),
)  # fmt: skip
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@contextmanager
def conversation(max_bytes: int = 64 * MIB) -> Iterator[tuple[Channel, Channel]]:
    """The worker's channel and the IO process's."""
    (ours, its), memories = socket.socketpair(), (Memory(max_bytes), Memory(max_bytes))
    one, other = Channel(ours, memories[0]), Channel(its, memories[1], patient=True)
    try:
        yield one, other
    finally:
        for open_one in (one, other, *memories):
            open_one.close()


def crossed(data: dict[str, Any]) -> dict[str, Any]:
    with conversation() as (one, other):
        one.send("x", data)
        return other.receive().data


@given(st.dictionaries(st.text(max_size=5), arrays.arrays(DTYPES, SHAPES), max_size=3))
def test_arrays_arrive_as_they_were(data: dict[str, np.ndarray]) -> None:
    arrived = crossed(data)
    assert arrived.keys() == data.keys()
    for name, array in data.items():
        assert (arrived[name].dtype, arrived[name].shape) == (array.dtype, array.shape)
        assert arrived[name].tobytes() == array.tobytes()
        assert arrived[name].flags.writeable


@pytest.mark.parametrize("size", [INLINE_BYTES - 64, INLINE_BYTES, INLINE_BYTES + 64, 5 * MIB])
def test_arrays_of_any_size_arrive(size: int) -> None:
    array = np.random.default_rng(1).integers(0, 255, size, np.uint8)
    arrived = crossed({"a": array, "b": array[::-2], "c": np.float32(3), "text": "wörld", "list": [1, None, {"x": 2}]})
    np.testing.assert_array_equal(arrived["a"], array)
    np.testing.assert_array_equal(arrived["b"], array[::-2])
    assert (float(arrived["c"]), arrived["text"], arrived["list"]) == (3, "wörld", [1, None, {"x": 2}])


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), np.array(["text"]), np.array(["2020-01-01"], "datetime64[D]"), {1, 2}, b"bytes", object()],
)
def test_what_is_neither_numbers_nor_json_does_not_cross(value: Any) -> None:
    with conversation() as (one, other):
        with pytest.raises(ProcessorFailed):
            one.send("x", {"value": value})
        one.send("still", {"value": 1})
        assert other.receive().kind == "still"


def test_more_than_its_memory_does_not_cross() -> None:
    with conversation(MIB) as (one, _), pytest.raises(ProcessorFailed, match="exceeds 1 MiB"):
        one.send("x", {"a": np.zeros(2 * MIB, np.uint8)})


def test_an_end_is_told() -> None:
    with conversation() as (one, other):
        one.close()
        with pytest.raises(Disconnected):
            other.receive()
        with pytest.raises(Disconnected):
            other.send("x")


def received(channel: Channel, count: int) -> tuple[list[Message], list[PenstockError], threading.Thread]:
    """Receive messages in a thread of their own, as a worker does, until an invalid one."""
    messages: list[Message] = []
    errors: list[PenstockError] = []

    def receive() -> None:
        try:
            messages.extend(channel.receive() for _ in range(count))
        except ProcessorFailed as error:
            errors.append(error)
            channel.shut()

    thread = threading.Thread(target=receive)
    thread.start()
    return messages, errors, thread


@pytest.mark.parametrize("size", [INLINE_BYTES, INLINE_BYTES + 64, 5 * MIB])
def test_a_process_sends_large_arrays_in_memory_that_its_worker_made(size: int) -> None:
    array = np.random.default_rng(1).integers(0, 255, size, np.uint8)
    with conversation() as (worker, process):
        messages, _, thread = received(worker, 2)
        for _ in range(2):
            process.send("x", {"a": array, "b": array[::-1]})
        thread.join()
        for message in messages:
            np.testing.assert_array_equal(message.data["a"], array)
            np.testing.assert_array_equal(message.data["b"], array[::-1])


def test_a_process_gets_no_more_memory_than_its_limit_and_all_of_it_again_when_it_dropped_it() -> None:
    """It cannot hold memory that nothing counts: what it drops is freed, whatever descriptors it keeps."""
    size = 40 * MIB  # two of these are more than a sender keeps
    with conversation(100 * MIB) as (worker, process):
        messages, errors, thread = received(worker, 7)
        process.send("x", {"a": np.ones(size, np.uint8)})
        process.send("x", {"a": np.ones(size, np.uint8)})
        with pytest.raises(ProcessorFailed, match=r"exceed 100 MiB \(io_memory_bytes\)"):
            process.send("x", {"a": np.ones(size, np.uint8)})
        wait_for(lambda: len(messages) == 2, "they did not arrive")
        messages.clear()
        gc.collect()
        worker.send("returned")
        process.receive()
        for number in range(5):  # ever larger: none fits into the last
            process.send("x", {"a": np.full(size + (number + 1) * 4 * MIB, number, np.uint8)})
            wait_for(lambda: messages, "it did not arrive")
            assert messages.pop().data["a"][-1] == number
            gc.collect()
            worker.send("returned")
            process.receive()
        thread.join()
        assert not errors


def test_memory_that_a_process_dropped_and_holds_on_to_ends_the_conversation() -> None:
    with conversation() as (worker, process):
        _, errors, thread = received(worker, 2)
        number, descriptor = process._ask_grant(MIB)
        with mmap.mmap(descriptor, MIB):
            memory = json.dumps({"returned": [], "dropped": [number], "lent": None})
            header = f'{memory}\n{{"kind": "x", "plain": {{}}, "arrays": {{}}}}'.encode()
            process._write(struct.pack("<BIQ", 0, len(header), 0), [header], None, lambda: None)
            thread.join()
        os.close(descriptor)
    assert "still mapped" in errors[0].detail


def test_a_wait_ends_when_its_tick_says_so() -> None:
    def tick() -> None:
        raise TimeoutError

    with conversation() as (one, _), pytest.raises(TimeoutError):
        one.receive(tick=tick)


def lines(layout: Any, *, lent: Any = None, returned: Any = (), plain: Any = None) -> bytes:
    memory = {"returned": list(returned) if isinstance(returned, tuple) else returned, "dropped": [], "lent": lent}
    header = {"kind": "x", "plain": {} if plain is None else plain, "arrays": layout}
    return json.dumps(memory).encode() + b"\n" + json.dumps(header).encode()


def raw(kind: int, header: bytes, body: bytes, body_bytes: int | None = None) -> bytes:
    return struct.pack("<BIQ", kind, len(header), len(body) if body_bytes is None else body_bytes) + header + body


NONSENSE = [
    b"\x07" * 64,
    b"\x00" + b"\xff" * 12,
    raw(9, lines({}), b""),
    raw(2, lines({}), b""),
    raw(0, b"", b""),
    raw(0, b"{}\n{}", b""),
    raw(0, b"[]\n[]", b""),
    raw(0, b"[" * 100_000 + b"\n", b""),
    raw(0, b"\xff\xfe\n\xff", b""),
    raw(0, lines([]), b""),
    raw(0, lines({"a": ["<f4", [2]]}), b"1234"),
    raw(0, lines({"a": ["<f4", [1]]}), b"12345678"),
    raw(0, lines({"a": ["<f4", [-1]]}), b"1234"),
    raw(0, lines({"a": ["<f4", [True]]}), b"1234"),
    raw(0, lines({"a": ["<f4", [1.0]]}), b"1234"),
    raw(0, lines({"a": ["<f4", [10**30, 10**30]]}), b"1234"),
    raw(0, lines({"a": ["<f4", [0, 10**30]]}), b""),
    raw(0, lines({"a": ["<f4", [1] * 100]}), b"1234"),
    raw(0, lines({"a": ["|O", [1]]}), b"12345678"),
    raw(0, lines({"a": ["|O8", [1]]}), b"12345678"),
    raw(0, lines({"a": ["<f3", [1]]}), b"123"),
    raw(0, lines({"a": "<f4"}), b"1234"),
    raw(0, lines({"a": None}), b""),
    raw(0, lines({str(n): ["|u1", [0]] for n in range(5000)}), b""),
    raw(0, lines({}, returned=[[]]), b""),
    raw(0, lines({}, returned=7), b""),
    raw(0, lines({}, plain=[1]), b""),
    raw(1, lines({"a": ["|u1", [100]]}, lent=1), b"", 100),
    raw(1, lines({"a": ["|u1", [100]]}), b"", 100),
    raw(1, lines({"a": ["|u1", [100]]}, lent=[1]), b"", 100),
    raw(1, lines({}, lent=1), b"", 2**60),
    raw(3, b"{}", b"", MIB),
    raw(3, b"[[]]", b"", MIB),
    raw(3, b"7", b"", MIB),
    raw(4, b"", b"", 1),
]  # fmt: skip


@pytest.mark.parametrize("sent", NONSENSE)
def test_nonsense_is_refused(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, Memory(MIB))
    with theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((ProcessorFailed, Disconnected)):
            channel.receive()
    channel.close()


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_waited_for(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, Memory(MIB))
    with theirs:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises((ProcessorFailed, Disconnected)):
            channel.receive()
    channel.close()


def test_descriptors_that_nobody_asked_for_are_closed() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    ours, theirs = socket.socketpair()
    channel = Channel(ours, Memory(MIB))
    with theirs, Path("/dev/null").open() as file:
        for sent in (raw(0, lines({}), b""), raw(2, lines({}), b""), raw(1, lines({}, lent=1), b"", 1), b"\x07" * 64):
            socket.send_fds(theirs, [sent], [file.fileno()])
            try:
                channel.receive()
            except ProcessorFailed:
                continue
    channel.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


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
            assert (message.kind, len(message.header["filling"])) == (str(number), size)
            np.testing.assert_array_equal(message.data["a"], np.full(size * 3, number, np.uint8))
            assert (message.descriptor is not None) == carries
            if message.descriptor is not None:
                assert os.path.sameopenfile(message.descriptor, file.fileno())
                assert not os.get_inheritable(message.descriptor)  # no program that a processor starts gets it
                os.close(message.descriptor)
        writer.join()


def test_what_an_idle_process_sends_on_top_of_its_message_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, Memory(MIB))
    with theirs:
        theirs.sendall(raw(0, lines({}), b""))
        channel.receive()
        assert not channel.readable()
        theirs.sendall(raw(0, lines({}), b"") * 2)
        channel.receive()
        assert channel.readable()  # although nothing may be left in the socket
    channel.close()


class TestMemory:
    @pytest.fixture(params=[True, False] if SEALABLE else [False])
    def sides(self, request: pytest.FixtureRequest) -> Iterator[tuple[Lender, Borrower]]:
        lender, borrower = Lender(sealable=request.param), Borrower(256 * MIB, sealable=request.param)
        yield lender, borrower
        lender.close()
        borrower.close()

    def test_a_segment_is_lent_again_when_it_came_back(self, sides: tuple[Lender, Borrower]) -> None:
        lender, borrower = sides
        numbers = []
        for value in range(3):
            loan = lender.lend([bytes([value]) * MIB], MIB)
            view = borrower.borrow(loan.number, loan.descriptor, MIB)
            assert bytes(view) == bytes([value]) * MIB
            assert borrower.returned() == []
            numbers.append(loan.number)
            del view
            gc.collect()
            lender.take_back(borrower.returned())
        assert numbers == [1, 1, 1]

    def test_a_segment_that_is_used_is_not_lent_again(self, sides: tuple[Lender, Borrower]) -> None:
        lender, borrower = sides
        views = []
        for value in range(3):
            loan = lender.lend([bytes([value]) * MIB], MIB)
            array = np.frombuffer(borrower.borrow(loan.number, loan.descriptor, MIB), np.uint8)
            views.append(array[10:20])  # a part of it holds all of it
            lender.take_back(borrower.returned())
        del array
        assert [view[0] for view in views] == [0, 1, 2]
        del views[1]
        assert borrower.returned() == [2]

    def test_a_segment_for_something_small_is_not_one_for_something_large(self, sides: tuple[Lender, Borrower]) -> None:
        lender, _ = sides
        large = lender.lend([bytes(16 * MIB)], 16 * MIB)
        lender.take_back([large.number])
        assert lender.lend([bytes(MIB)], MIB).number != large.number
        assert lender.lend([bytes(8 * MIB)], 8 * MIB).number == large.number

    def test_little_is_kept_and_what_is_dropped_is_told(self, sides: tuple[Lender, Borrower]) -> None:
        lender, _ = sides
        loans = [lender.lend([bytes(KEPT_BYTES // 2)], KEPT_BYTES // 2) for _ in range(3)]
        lender.take_back(loan.number for loan in loans)
        assert lender.dropped() == [1]
        assert lender.dropped() == []
        lender.take_back([1, 99])  # as a liar would

    def test_too_much_is_not_mapped(self) -> None:
        lender, borrower = Lender(), Borrower(MIB)
        loan = lender.lend([bytes(2 * MIB)], 2 * MIB)
        with pytest.raises(UnsafeMemory, match="too much"):
            borrower.borrow(loan.number, loan.descriptor, 2 * MIB)
        lender.close()

    def test_a_pipe_is_no_memory(self) -> None:
        ends = os.pipe()
        with pytest.raises(UnsafeMemory):
            Borrower(MIB).borrow(1, ends[0], 10)
        for end in ends:
            os.close(end)


class Own(InvalidInput):
    """A plugin's own."""


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (MediaTooLarge("so large"), MediaTooLarge, "so large"),
        (Own("mine"), InvalidInput, "mine"),
        (DeviceLost("not yours"), ProcessorFailed, "not yours"),
        (Fenced(), ProcessorFailed, "The attempt's lease was lost"),
        (MemoryError(), ProcessorFailed, "1 MiB"),
        (OSError(12, "no memory"), ProcessorFailed, "1 MiB"),
        (OSError(28, "disk full"), PenstockError, "is full"),
        (KeyError("secret"), ProcessorFailed, "raised KeyError"),
        (InvalidInput("x" * 10_000), InvalidInput, "x" * 2000),
    ],
)
def test_errors_cross_as_what_a_processor_may_raise(
    raised: BaseException, kind: type[PenstockError], words: str
) -> None:
    error = reports.from_json(json.loads(json.dumps(reports.to_json(raised, MIB))))
    assert isinstance(error, kind)
    assert not isinstance(error, DeviceLost | Fenced)
    assert words in error.detail
    assert "secret" not in error.detail


def test_issues_cross_with_their_error() -> None:
    issues = [Issue("/input/x", "wrong")]
    assert list(reports.from_json(reports.to_json(InvalidInput("no", errors=issues), MIB)).errors) == issues


@pytest.mark.parametrize("data", [None, [], {}, {"error": "DeviceLost", "detail": "", "issues": []}, {"error": 1}])
def test_a_report_that_is_none_is_the_processors_failure(data: Any) -> None:
    assert type(reports.from_json(data)) is ProcessorFailed
