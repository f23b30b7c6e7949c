"""Questions to the API: its answers, its refusals, and its silence."""

from __future__ import annotations

import httpx2
import pytest

from penstock.errors import LinkRefused, ServiceError, UnknownJob
from penstock.maps.relay import Relay


def relay(status: int, body: object) -> tuple[Relay, list[httpx2.Request]]:
    asked: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(status, json=body)

    return Relay("http://api.test", httpx2.MockTransport(answer)), asked


def test_a_question_carries_its_key_and_no_other() -> None:
    found, asked = relay(200, {"id": "1"})
    assert found.ask("/v1/jobs/1", key="of acme") == {"id": "1"}
    found.ask("/v1/jobs/1")
    assert [request.headers.get("authorization") for request in asked] == ["Bearer of acme", None]


@pytest.mark.parametrize("error", [UnknownJob("no such job"), LinkRefused("expired")])
def test_a_refusal_of_the_api_is_ours(error: UnknownJob | LinkRefused) -> None:
    found, _ = relay(404, error.report().to_json())
    with pytest.raises(type(error), match=error.detail):
        found.ask("/v1/jobs/1")


@pytest.mark.parametrize("body", ["busy", {"message": "a proxy's page"}])
def test_an_answer_of_nobody_we_know_is_a_fault_of_the_service(body: object) -> None:
    found, _ = relay(502, body)
    with pytest.raises(ServiceError, match="the API does not answer"):
        found.ask("/v1/jobs/1")
