"""Calls on queues that go on until nothing is left, or nothing moves."""

from __future__ import annotations

import httpx2
import pytest

from penstock.client.answers import Unreachable
from penstock.client.asynchronous.queues import AsyncQueues
from tests.support.answering import Answering

JOB = {"id": "0190", "model": "csmask", "status": "queued", "created_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize("last", [{"canceled": 2, "more": False}, {"canceled": 0, "more": True}])
async def test_a_purge_goes_on_while_it_cancels_jobs(last: dict[str, object]) -> None:
    service = Answering(httpx2.Response(200, json={"canceled": 5, "more": True}), httpx2.Response(200, json=last))
    assert await AsyncQueues(service.service()).purge_queue() == 5 + int(str(last["canceled"]))
    assert [request.url.path for request in service.asked] == ["/v1/queues/default/purge"] * 2


async def test_dead_letters_are_requeued_until_none_is_left() -> None:
    answers = [httpx2.Response(200, json={"jobs": [JOB], "more": more}) for more in (True, False)]
    assert [job.id for job in await AsyncQueues(Answering(*answers).service()).requeue_dead_letters()] == ["0190"] * 2


@pytest.mark.parametrize("body", ["[]", "<html>", ""])
async def test_another_server_is_no_service(body: str) -> None:
    service = Answering(httpx2.Response(200, text=body))
    with pytest.raises(Unreachable, match=r"http://service\.test is not Penstock"):
        await AsyncQueues(service.service()).job_store()
