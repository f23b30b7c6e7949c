"""Outcomes of a job by its error."""

from __future__ import annotations

import errno

import pytest

from penstock.errors import (
    Canceled,
    FetchFailed,
    InvalidInput,
    MediaNotFound,
    ModelUnavailable,
    ObjectStoreUnavailable,
    OutOfMemory,
    OutOfSpace,
    PenstockError,
    ProcessorFailed,
)
from penstock.jobs import State
from penstock.workers.retry_policy import outcome_of, retry_delay_s, to_penstock_error


@pytest.mark.parametrize("error", [InvalidInput("x"), MediaNotFound(), ProcessorFailed(), ModelUnavailable()])
def test_bad_input_and_bad_models_are_never_retried(error: PenstockError) -> None:
    outcome = outcome_of(error, attempt=1, draw=0.5)
    assert outcome.state is State.FAILED
    assert outcome.error == error.report()


@pytest.mark.parametrize("error", [FetchFailed(), ObjectStoreUnavailable(), OutOfMemory()])
def test_passing_trouble_asks_for_another_try(error: PenstockError) -> None:
    outcome = outcome_of(error, attempt=1, draw=0.5)
    assert outcome.state is State.DELAYED
    assert outcome.retry_delay_s == 2.0


@pytest.mark.parametrize(("asked_s", "waits_s"), [(None, 2.0), (1.0, 2.0), (90.0, 90.0), (1e9, 3600.0)])
def test_a_server_that_asks_for_a_pause_gets_it_up_to_an_hour(asked_s: float | None, waits_s: float) -> None:
    assert outcome_of(FetchFailed(retry_after_s=asked_s), attempt=1, draw=0.5).retry_delay_s == waits_s


def test_a_seen_cancel_ends_the_job_as_canceled() -> None:
    assert outcome_of(Canceled(), attempt=1, draw=0.5).state is State.CANCELED


def test_the_delay_is_full_jitter_with_a_ceiling() -> None:
    assert [retry_delay_s(attempt, 1.0) for attempt in (1, 2, 3, 7, 8, 50)] == [4, 8, 16, 256, 300, 300]
    assert retry_delay_s(5, 0.0) == 0


def test_foreign_errors_say_nothing_of_their_text() -> None:
    error = to_penstock_error(KeyError("/secret/path"))
    assert isinstance(error, ProcessorFailed)
    assert "secret" not in error.detail
    assert isinstance(to_penstock_error(MemoryError()), OutOfMemory)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_passing_trouble(number: int) -> None:
    error = to_penstock_error(OSError(number, "no room"))
    assert isinstance(error, OutOfSpace)
    assert outcome_of(error, attempt=1, draw=0.5).state is State.DELAYED
    assert isinstance(to_penstock_error(FileNotFoundError(errno.ENOENT, "x")), ProcessorFailed)
