"""Requests are repeated until an answer comes, patience ends, or a repetition is pointless."""

from __future__ import annotations

import httpx2
import pytest

from penstock.client.answers import PenstockAPIError, Unreachable
from tests.support.answering import Answering, problem

GONE = httpx2.ConnectError("gone")


async def ask(service: Answering, patience_s: float = 60) -> httpx2.Response:
    return await service.service(patience_s).send("GET", "/v1/jobs/1")


async def test_a_lost_connection_is_tried_again_with_growing_pauses() -> None:
    service = Answering(GONE, GONE, httpx2.Response(200, text="{}"))

    assert (await ask(service)).text == "{}"
    assert service.pauses == [0.25, 0.5]


async def test_the_service_says_how_long_to_wait() -> None:
    service = Answering(problem(503, "queue_full", retryable=True, **{"retry-after": "7"}), httpx2.Response(200))

    assert (await ask(service)).status_code == 200
    assert service.pauses == [7.0]


@pytest.mark.parametrize("kind", [httpx2.DecodingError, httpx2.TooManyRedirects])
async def test_an_answer_that_cannot_be_read_is_asked_for_again(kind: type[httpx2.RequestError]) -> None:
    service = Answering(*[kind("no")] * 2)

    with pytest.raises(Unreachable, match=r"no answer from http://service\.test: no"):
        await ask(service, patience_s=0.3)
    assert len(service.asked) == 2


async def test_waiting_ends_where_patience_does() -> None:
    service = Answering(problem(429, "too_many_jobs", retryable=True, **{"retry-after": "61"}))

    with pytest.raises(PenstockAPIError, match="too_many_jobs"):
        await ask(service)
    assert service.pauses == []


async def test_a_dead_service_is_given_up() -> None:
    service = Answering(*[GONE] * 20)

    with pytest.raises(Unreachable, match=r"no answer from http://service\.test: gone") as caught:
        await ask(service, patience_s=5)
    assert 0 < sum(service.pauses) <= 5
    assert caught.value.__cause__ is GONE


@pytest.mark.parametrize("status", [400, 404, 413, 422, 503])
async def test_what_another_try_cannot_change_is_not_tried_again(status: int) -> None:
    with pytest.raises(PenstockAPIError) as caught:
        await ask(Answering(problem(status, "no", retryable=False)))
    assert (caught.value.status, caught.value.code, caught.value.retryable) == (status, "no", False)


@pytest.mark.parametrize("status", [301, 307])
async def test_an_answer_that_leads_elsewhere_is_not_taken_for_done(status: int) -> None:
    elsewhere = httpx2.Response(status, headers={"location": "https://penstock.example.org/v1/jobs/1?signature=s"})
    service = Answering(elsewhere)

    with pytest.raises(PenstockAPIError, match=r"leads elsewhere \(https://penstock\.example\.org/v1/jobs/1\)"):
        await service.service().fetch("DELETE", "/v1/jobs/1")
    assert len(service.asked) == 1


async def test_an_answer_that_is_no_problem_is_one_all_the_same() -> None:
    with pytest.raises(PenstockAPIError, match="HTTP 403"):
        await ask(Answering(httpx2.Response(403, text="<Error>AccessDenied</Error>")))


async def test_an_error_of_an_object_store_is_named_and_those_that_pass_are_tried_again() -> None:
    slow, denied = (f"<Error><Code>{code}</Code></Error>" for code in ("SlowDown", "AccessDenied"))
    service = Answering(httpx2.Response(400, text=slow), httpx2.Response(403, text=denied))
    with pytest.raises(PenstockAPIError, match=r"the object store answered AccessDenied \(HTTP 403\)") as caught:
        await ask(service)
    assert (caught.value.code, service.pauses) == ("s3_AccessDenied", [0.25])


async def test_a_key_goes_to_the_service_and_to_no_other_address() -> None:
    service = Answering(httpx2.Response(200), httpx2.Response(200))
    own = service.service()
    keyed = type(own)(address=own.address, http=own.http, patience_s=0, api_key="penstock_k")
    await keyed.send("GET", "/v1/jobs")
    await keyed.send("PUT", "http://store.test/signed", body={})
    assert [request.headers.get("authorization") for request in service.asked] == ["Bearer penstock_k", None]
