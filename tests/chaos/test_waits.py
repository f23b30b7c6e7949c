"""The judge of the two waits: it is silent about good recoveries and names each wait that was too long."""

from __future__ import annotations

import json

from tests.chaos.waits import Event, Recovery, Span, busy, events_of, free, longest_s, recoveries, violations, without

FOREVER = Span(0, 1000)


def rows() -> list[tuple[str, dict[str, str]]]:
    def row(at_ms: int, kind: str, **data: object) -> tuple[str, dict[str, str]]:
        return f"{at_ms}-0", {"type": kind, "data": json.dumps(data)}

    return [
        row(1000, "job.created"),
        row(2000, "job.started", worker="a"),
        row(9000, "job.requeued", reason="lease_lost", late_ms=1500),
        row(9500, "job.started", worker="b"),
        row(9900, "job.requeued", reason="due"),
        row(9950, "job.started", worker="b"),
        row(12000, "job.succeeded"),
    ]


def test_both_waits_of_a_recovery_are_read_from_the_jobs_events() -> None:
    assert recoveries(events_of(rows())) == [Recovery(7.5, 9.0, 9.5)]
    assert busy([events_of(rows())]) == {"a": [Span(2, 9)], "b": [Span(9.5, 9.9), Span(9.95, 12)]}


def test_a_worker_is_free_while_it_lives_and_a_slot_is_unused() -> None:
    taken = [Span(1, 5), Span(2, 4), Span(6, 9)]
    assert free([Span(0, 8)], taken, 2) == [Span(0, 2), Span(4, 8)]
    assert free([Span(0, 8)], taken, 1) == [Span(0, 1), Span(5, 6)]
    assert free([], taken, 2) == []


def test_times_are_cut_out_and_joined() -> None:
    assert without([Span(0, 10), Span(5, 12)], [Span(3, 4), Span(11, 20)]) == [Span(0, 3), Span(4, 11)]
    assert longest_s(Span(2, 9), [Span(0, 4), Span(4, 6), Span(8, 20)]) == 4


def test_good_recoveries_are_no_violations() -> None:
    good = Recovery(10, 11.9, 12.8)
    assert violations([good, Recovery(10, 11, None)], [FOREVER], [FOREVER], []) == []
    slow = Recovery(10, 11, 40)
    assert violations([slow], [FOREVER], [Span(0, 11), Span(39.5, 50)], []) == []  # no slot was free
    assert violations([Recovery(10, 31, 31.5)], [FOREVER], [FOREVER], [Span(5, 30)]) == []  # Redis was away
    alone = [Span(0, 10.5), Span(20, 50)]  # nobody lived in between
    assert violations([Recovery(10, 21.4, 22)], alone, alone, []) == []


def test_each_wait_is_named_by_itself() -> None:
    [late] = violations([Recovery(10, 12.1, 12.2)], [FOREVER], [FOREVER], [])
    assert "queued only 2.1 s" in late
    [idle] = violations([Recovery(10, 11, 12.1)], [FOREVER], [FOREVER], [])
    assert "waited 1.1 s in its queue" in idle
    assert len(violations([Recovery(10, 40, 50)], [FOREVER], [FOREVER], [Span(5, 30)])) == 2
    assert len(violations([Recovery(10, 22, 22.1)], [Span(0, 11), Span(20.5, 50)], [], [])) == 1


def test_an_attempt_without_an_end_is_no_work() -> None:
    assert busy([[Event(1, "job.started", {"worker": "a"})]]) == {}
