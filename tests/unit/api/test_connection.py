"""The turn of a submission: the time at the door counts in its time limit, and in no later one."""

from __future__ import annotations

import pytest
from fastapi import Request

from penstock.api.admission.concurrency import ConcurrencyLimit
from penstock.api.connection import turn
from penstock.patience import LEAST_TIMEOUT_S, after_waiting, limit_s, one_patience

#: Seconds that a call may take without a time limit of its request.
LONGEST_S = 3.3


async def test_the_time_at_the_door_shortens_the_calls_of_the_submission_alone() -> None:
    request = Request({"type": "http"})
    with after_waiting(2.0):
        async with turn(request, ConcurrencyLimit(), "default"):
            assert limit_s(LONGEST_S) == pytest.approx(LONGEST_S - 2.0)
        with one_patience():  # the read at the end of a job that was waited for
            assert limit_s(LONGEST_S) == LONGEST_S
    with after_waiting(60.0):
        async with turn(request, ConcurrencyLimit(), "default"):
            assert limit_s(LONGEST_S) == LEAST_TIMEOUT_S
