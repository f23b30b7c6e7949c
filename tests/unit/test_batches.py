"""A batch, worked out without any store: counts, status, lines, ids."""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.batches import (
    Batch,
    BatchEnd,
    BatchKey,
    BatchManifest,
    BatchStatus,
    Counts,
    Cursor,
    counts,
    final_status,
    lines_of,
)
from penstock.jobs import State

MANIFEST = BatchManifest(
    BatchKey("default", "b"), "f", "lines", 1, 100, created_us=1_000_000, ttl_s=60, retention_s=10, metadata={"a": "b"}
)


#: A state that only newer releases know counts as waiting.
WAITING = (State.RESERVED, State.QUEUED, State.DELAYED, State.OTHER)


@given(st.dictionaries(st.sampled_from(State), st.integers(0, 50)), st.integers(0, 20), st.integers(0, 300))
def test_the_parts_of_the_counts_add_up(states: dict[State, int], invalid: int, waiting: int) -> None:
    total = sum(states.values()) + invalid + waiting
    found = counts(total, states, invalid)
    parts = (
        found.queued, found.running, found.succeeded, found.failed, found.canceled, found.expired, found.invalid,
    )  # fmt: skip
    assert sum(parts) == total == found.total
    assert found.queued == waiting + sum(states.get(s, 0) for s in WAITING)
    assert found.over == total - found.queued - found.running


def test_a_batch_runs_until_its_end_is_asked_for_or_its_time_is_over() -> None:
    batch = Batch(MANIFEST, at_s=60.9)
    assert (batch.status, batch.closing) == (BatchStatus.RUNNING, False)
    assert (replace(batch, at_s=61.0).status, replace(batch, at_s=61.0).closing) == (BatchStatus.EXPIRING, True)
    assert replace(batch, cancel_requested=True).status is BatchStatus.CANCELING
    assert (batch.expires_s, batch.live, batch.expanded) == (None, 0, False)
    assert replace(batch, cursor=Cursor(120, 9000, 100, 3)).expanded
    assert replace(batch, states={State.RUNNING: 2, State.DELAYED: 1, State.FAILED: 9}).live == 3


def test_what_is_stored_as_the_end_is_what_counts() -> None:
    end = BatchEnd(BatchStatus.CANCELED, Counts(100, succeeded=40, canceled=60), 80.0)
    batch = Batch(MANIFEST, states={State.SUCCEEDED: 1}, at_s=90, end=end)
    assert (batch.status, batch.counts.succeeded, batch.expires_s) == (BatchStatus.CANCELED, 40, 90.0)


@pytest.mark.parametrize(
    ("found", "cancel", "overdue", "status"),
    [
        (Counts(3, succeeded=1, failed=1, invalid=1), False, False, "completed"),
        (Counts(3, succeeded=3), True, True, "completed"),  # the end came too late to change anything
        (Counts(3, succeeded=2, canceled=1), True, False, "canceled"),
        (Counts(3, succeeded=2, canceled=1), True, True, "canceled"),
        (Counts(3, succeeded=2, expired=1), False, True, "expired"),
        (Counts(3, succeeded=2, canceled=1), False, True, "expired"),  # a running member is canceled by the deadline
        (Counts(3, succeeded=1, canceled=1, expired=1), False, False, "completed"),  # members ended by themselves
    ],
)
def test_how_a_batch_ends_follows_from_what_its_lines_came_to(
    found: Counts, cancel: bool, overdue: bool, status: str
) -> None:
    assert final_status(found, cancel_requested=cancel, overdue=overdue).value == status


def test_manifest_and_end_come_back_as_they_were_stored() -> None:
    assert BatchManifest.from_json(MANIFEST.to_json(), MANIFEST.more) == MANIFEST
    end = BatchEnd(BatchStatus.EXPIRED, Counts(2, expired=2), 5.5)
    assert BatchEnd.from_json(end.to_json()) == end


def test_the_webhook_of_a_batch_is_stored_beside_the_manifest() -> None:
    told = replace(MANIFEST, webhook="https://a.test/")
    assert told.to_json() == MANIFEST.to_json()
    assert "webhook" not in told.to_json()
    assert BatchManifest.from_json(told.to_json(), told.more) == told


def test_a_line_becomes_one_job_whoever_asks() -> None:
    key = BatchKey("default", "018f0000-0000-7000-8000-000000000001")
    assert key.member(7) == BatchKey.parse(str(key)).member(7)
    ids = {key.member(n).id for n in range(1000)} | {BatchKey("default", "b").member(n).id for n in range(1000)}
    assert len(ids) == 2000


@given(
    st.lists(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), max_size=20), st.integers(1, 7), st.booleans()
)
def test_lines_do_not_depend_on_how_their_bytes_arrive(rows: list[bytes], size: int, ends: bool) -> None:
    data = b"\n".join(rows) + (b"\n" if ends else b"")
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    assume(BOM_UTF8 not in data)
    found = list(lines_of(chunks, limit_bytes=8))
    expected = [(n, row) for n, row in enumerate(data.split(b"\n"), 1) if len(row) > 8 or row.strip()]
    assert [(line.number, line.data) for line in found] == [
        (n, row.strip() if len(row) <= 8 else None) for n, row in expected
    ]


def test_byte_order_marks_of_joined_files_belong_to_no_line() -> None:
    data = BOM_UTF8 + b'{"a": 1}\n' + BOM_UTF8 + b'{"a": 2}\n' + BOM_UTF8 + b"\n{}"
    found = list(lines_of([data[:2], data[2:]], limit_bytes=100))
    assert [(line.number, line.data) for line in found] == [(1, b'{"a": 1}'), (2, b'{"a": 2}'), (4, b"{}")]
    assert found[-1].end == len(data)


@given(st.lists(st.sampled_from([b"{}", b"", b"  ", b'{"a":1}', b"x" * 30]), max_size=20), st.integers(0, 19))
def test_reading_goes_on_behind_any_line(rows: list[bytes], after: int) -> None:
    data = b"\n".join(rows)
    whole = list(lines_of([data], limit_bytes=10))
    if after < len(whole):
        last = whole[after]
        rest = lines_of([data[last.end :]], limit_bytes=10, after=Cursor(last.number, last.end))
        assert list(rest) == whole[after + 1 :]


def test_an_endless_line_is_not_held_in_memory() -> None:
    def chunks() -> object:
        for _ in range(2000):
            yield b"x" * 100_000
        yield b"\n{}"

    import tracemalloc

    tracemalloc.start()
    found = list(lines_of(chunks(), limit_bytes=1000))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(line.number, line.data) for line in found] == [(1, None), (2, b"{}")]
    assert peak < 2_000_000
