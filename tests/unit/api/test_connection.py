"""The turn of a submission: the time in line counts in its time limit, and in no later one."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import Request
from starlette.types import Message

from penstock.api.admission.concurrency import ConcurrencyLimit
from penstock.api.connection import turn
from penstock.storage.deadline import limit_s, request_deadline

#: Seconds that a call may take without a time limit of its request.
LONGEST_S = 3.3
WAITED_S = 0.2


async def connected() -> Message:
    """Wait for a client that stays."""
    await asyncio.Event().wait()
    raise AssertionError


async def test_the_time_in_line_shortens_the_calls_of_the_submission_alone() -> None:
    request, limit = Request({"type": "http"}, connected), ConcurrencyLimit(1)
    async with turn(request, limit, "default"):
        assert limit_s(LONGEST_S) == pytest.approx(LONGEST_S, abs=0.1)
    await limit.enter("other")
    asyncio.get_running_loop().call_later(WAITED_S, limit.leave)
    async with turn(request, limit, "default"):
        assert limit_s(LONGEST_S) <= LONGEST_S - WAITED_S * 0.9
    with request_deadline():  # the read at the end of a job that was waited for
        assert limit_s(LONGEST_S) == LONGEST_S
