"""Webhook endpoints and deliveries over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from standardwebhooks import Webhook as Verifier

from penstock.api.routes.webhooks import MAX_ENDPOINTS
from penstock.client import AsyncClient
from penstock.intake.guard import GuardedClient
from penstock.storage.redis.records import JobStore
from penstock.workers.keeper.webhooks import Deliverer
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import Service, assert_problem
from tests.support.valkey import ValkeyProcess
from tests.support.webhook_receivers import receiving

URL = "http://files.test:80/hook"
ENDS = ["job.succeeded", "job.failed", "job.canceled", "job.expired"]
BASE = "/v1/webhook-endpoints"


async def create(service: Service, **body: Any) -> dict[str, Any]:
    response = await service.http.post(BASE, json={"url": URL, **body})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


def deliver(service: Service, valkey: ValkeyProcess, *allowed: str) -> None:
    """Send what is due, and come back when it was sent."""
    store = JobStore.open(valkey.url)
    settings = service.settings.model_copy(update={"allowed_hosts": allowed})
    deliverer = Deliverer(store, service.objects, GuardedClient(settings), base_url=settings.base_url)
    deliverer.deliver_due()
    deliverer.close()
    store.close()


async def test_an_endpoint_is_made_shown_changed_and_deleted_and_its_secret_told_once(service: Service) -> None:
    made = await create(service, description="ours")
    secret = made.pop("secret")
    assert (made["events"], made["models"], made["enabled"], made["description"]) == (ENDS, [], True, "ours")
    path = f"{BASE}/{made['id']}"
    assert (await service.http.get(path)).json() == made
    assert (await service.http.get(BASE)).json() == {"endpoints": [made]}
    changed = await service.http.patch(path, json={"events": ["job.failed", "job.failed"], "enabled": False})
    assert (changed.json()["events"], changed.json()["enabled"], changed.json()["description"]) == (
        ["job.failed"], False, "ours"
    )  # fmt: skip
    for answer in (await service.http.get(path), await service.http.get(BASE), changed):
        assert secret.removeprefix("whsec_") not in answer.text
    assert (await service.http.delete(path)).status_code == 204
    for method in ("get", "delete"):
        assert_problem(await getattr(service.http, method)(path), 404, "unknown_endpoint")
    assert_problem(await service.http.patch(path, json={"enabled": True}), 404, "unknown_endpoint")
    assert (await service.http.get(BASE)).json() == {"endpoints": []}


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/url"),
        ({"url": "http://10.0.0.1/hook"}, "/url"),
        ({"url": "http://127.0.0.1:9/hook"}, "/url"),
        ({"url": "ftp://files.test/hook"}, "/url"),
        ({"url": "http://me@files.test:80/"}, "/url"),
        ({"url": f"{URL}#part"}, "/url"),
        ({"url": URL, "events": []}, "/events"),
        ({"url": URL, "events": ["job.exploded"]}, "/events/0"),
        ({"url": URL, "secret": "whsec_mine"}, "/secret"),
        ({"url": URL, "description": "x" * 501}, "/description"),
    ],
)
async def test_what_cannot_be_an_endpoint_is_refused_with_a_pointer(
    service: Service, body: dict[str, Any], pointer: str
) -> None:
    problem = assert_problem(await service.http.post(BASE, json=body), 422, "invalid_request")
    assert [issue["pointer"] for issue in problem["errors"]] == [pointer]
    assert (await service.http.get(BASE)).json() == {"endpoints": []}


async def test_models_that_nobody_knows_are_refused_and_the_known_ones_named(service: Service) -> None:
    refused = await service.http.post(BASE, json={"url": URL, "models": ["echo", "nobody", "echp"]})
    problem = assert_problem(refused, 422, "unknown_model")
    assert [issue["pointer"] for issue in problem["errors"]] == ["/models/1", "/models/2"]
    assert (
        problem["detail"]
        == "there is no model 'nobody', 'echp' (did you mean 'echo'?); known models: broken, echo (parrot)"
    )
    assert (await service.http.get(BASE)).json() == {"endpoints": []}
    # A model that cannot be used at the moment is one all the same; jobs bear the name and no alias.
    made = await create(service, models=["parrot", "broken", "echo"])
    assert made["models"] == ["echo", "broken"]
    changed = await service.http.patch(f"{BASE}/{made['id']}", json={"models": ["nobody"]})
    assert_problem(changed, 422, "unknown_model")


async def test_an_endpoint_keeps_models_that_are_gone_and_its_request_may_be_repeated(
    service: Service, valkey: ValkeyProcess
) -> None:
    body, headers = {"url": URL, "models": ["echo"]}, {"Idempotency-Key": "k"}
    made = (await service.http.post(BASE, json=body, headers=headers)).json()
    valkey.flush()
    again = await service.http.post(BASE, json=body, headers=headers)
    assert (again.status_code, again.json()["id"]) == (201, made["id"])
    path = f"{BASE}/{made['id']}"
    assert (await service.http.patch(path, json={"models": ["echo"], "description": "x"})).status_code == 200
    other = await service.http.patch(path, json={"models": ["echo", "other"]})
    assert_problem(other, 503, "not_ready")
    assert other.headers["retry-after"]


async def test_a_change_is_checked_like_a_new_one(service: Service) -> None:
    path = f"{BASE}/{(await create(service))['id']}"
    problem = assert_problem(await service.http.patch(path, json={"url": "http://10.0.0.1/"}), 422, "invalid_request")
    assert problem["errors"][0]["pointer"] == "/url"
    assert_problem(await service.http.patch(path, json={"secret": "x"}), 422, "invalid_request")
    for bad in ("nothing", "0199"):
        assert_problem(await service.http.get(f"{BASE}/{bad}"), 404, "unknown_endpoint")


async def test_a_request_that_is_repeated_makes_one_endpoint_and_tells_its_secret_again(service: Service) -> None:
    headers = {"Idempotency-Key": "k"}
    first, again = [await service.http.post(BASE, json={"url": URL}, headers=headers) for _ in range(2)]
    assert first.json() == again.json()
    assert (first.headers.get("idempotency-replayed"), again.headers["idempotency-replayed"]) == (None, "true")
    other = await service.http.post(BASE, json={"url": URL, "models": ["echo"]}, headers=headers)
    assert_problem(other, 422, "idempotency_mismatch")
    assert len((await service.http.get(BASE)).json()["endpoints"]) == 1


async def test_a_tenant_has_so_many_endpoints_and_no_more(service: Service) -> None:
    for _ in range(MAX_ENDPOINTS):
        await create(service)
    assert_problem(await service.http.post(BASE, json={"url": URL}), 409, "state_conflict")


async def test_a_rotation_tells_the_new_secret_and_until_when_the_old_one_signs(service: Service) -> None:
    made = await create(service)
    path = f"{BASE}/{made['id']}/rotate"
    rotated = (await service.http.post(path)).json()
    assert rotated["secret"] != made["secret"]
    assert rotated["old_secrets_until"] is not None
    revoked = (await service.http.post(path, json={"overlap_s": 0})).json()
    assert (revoked["old_secrets_until"], revoked["secret"] in (made["secret"], rotated["secret"])) == (None, False)
    assert_problem(await service.http.post(path, json={"overlap_s": -1}), 422, "invalid_request")
    assert_problem(await service.http.post(path, content=b"{}"), 415, "unsupported_content_type")


async def test_a_test_event_is_sent_once_signed_by_both_secrets_and_its_answer_is_told(
    service: Service, valkey: ValkeyProcess
) -> None:
    with receiving(500, body=b"no such hook\x00 whsec_c2VjcmV0") as receiver:
        service_of = service.settings.model_copy(update={"allowed_hosts": (receiver.pair,)})
        service.swap(settings=service_of)
        made = await create(service, url=receiver.url)
        rotated = (await service.http.post(f"{BASE}/{made['id']}/rotate")).json()
        sent = await service.http.post(f"{BASE}/{made['id']}/test")
        assert (sent.status_code, sent.json()["state"]) == (202, "pending")
        waiting = asyncio.create_task(service.http.get(f"/v1/deliveries/{sent.json()['id']}", params={"wait": 30}))
        await asyncio.to_thread(deliver, service, valkey, receiver.pair)
        told = (await waiting).json()
        headers, body = receiver.got.get(timeout=30)
    for secret in (made["secret"], rotated["secret"]):
        event = Verifier(secret).verify(body, headers)
        assert (event["type"], event["data"]["id"]) == ("webhook.test", made["id"])
    assert headers["webhook-id"] == told["id"]
    assert (told["state"], told["job"], told["endpoint"], told["tries"]) == ("failed", None, made["id"], 1)
    assert (told["log"][0]["status"], told["log"][0]["answer"]) == (500, "no such hook  [redacted]")
    assert told["log"][0]["latency_ms"] > 0
    listed = (await service.http.get(f"{BASE}/{made['id']}/deliveries")).json()
    assert listed == {"deliveries": [told], "next_cursor": None}
    assert (await service.http.get("/v1/deliveries/dead-letters")).json() == {"deliveries": [], "more": False}
    assert_problem(await service.http.get("/v1/deliveries/msg_none"), 404, "unknown_delivery")


async def test_a_receiver_that_is_gone_is_disabled_and_what_it_missed_is_sent_again_when_it_is_back(
    service: Service, valkey: ValkeyProcess
) -> None:
    with receiving(410, 200) as receiver:
        object.__setattr__(
            service.app.state.services, "settings",
            service.settings.model_copy(update={"allowed_hosts": (receiver.pair,)}),
        )  # fmt: skip
        path = f"{BASE}/{(await create(service, url=receiver.url))['id']}"
        job = await service.submit()
        await service.succeed(await service.claim())
        await asyncio.to_thread(deliver, service, valkey, receiver.pair)
        gone = (await service.http.get(path)).json()
        assert (gone["enabled"], gone["disabled_reason"]) == (False, "its receiver responded with status 410")
        await service.submit()
        await service.succeed(await service.claim())
        [dead] = (await service.http.get("/v1/deliveries/dead-letters")).json()["deliveries"]
        assert (dead["job"], dead["state"]) == (job["id"], "failed")
        assert_problem(await service.http.post(f"/v1/deliveries/{dead['id']}/redeliver"), 409, "state_conflict")
        refused = (await service.http.post("/v1/deliveries/dead-letters/redeliver")).json()
        assert refused == {"deliveries": 0, "more": True}
        assert_problem(await service.http.post(f"{path}/test"), 409, "state_conflict")
        back = (await service.http.patch(path, json={"enabled": True})).json()
        assert (back["enabled"], back["disabled_reason"]) == (True, None)
        sent = (await service.http.post("/v1/deliveries/dead-letters/redeliver")).json()
        assert sent == {"deliveries": 1, "more": False}
        await asyncio.to_thread(deliver, service, valkey, receiver.pair)
        (first, body), (second, again) = receiver.got.get(timeout=30), receiver.got.get(timeout=30)
        assert receiver.got.empty()
    assert (first["webhook-id"], body) == (second["webhook-id"], again)
    told = (await service.http.get(f"/v1/deliveries/{dead['id']}")).json()
    assert [one["status"] for one in told["log"]] == [410, 200]


async def test_the_client_does_all_of_it(service: Service) -> None:
    transport = httpx2.ASGITransport(service.app)
    async with AsyncClient(service.settings.base_url, patience_s=1, transport=transport) as client:
        made = await client.create_webhook_endpoint(URL, models=["echo"])
        assert made.secret
        assert made.secret not in repr(made)
        assert [e.id for e in await client.webhook_endpoints()] == [made.id]
        assert (await client.change_webhook_endpoint(made.id, description="x")).models == ("echo",)
        assert (await client.webhook_endpoint(made.id)).secret is None
        assert (await client.rotate_webhook_secret(made.id, overlap_s=5)).secret != made.secret
        job = await client.submit("echo", {"text": "hi"})
        await client.cancel(job.id)
        [delivery] = (await client.endpoint_deliveries(made.id)).deliveries
        assert (delivery.job, delivery.endpoint, delivery.state) == (job.id, made.id, "pending")
        assert (await client.delivery(delivery.id)).event == "job.canceled"
        sent = await client.test_webhook_endpoint(made.id, wait_s=0)
        assert (sent.event, sent.job) == ("webhook.test", None)
        assert await client.dead_deliveries(endpoint_id=made.id) == []
        assert await client.redeliver_dead() == 0
        await client.delete_webhook_endpoint(made.id)
        assert await client.webhook_endpoints() == []


@pytest.fixture
async def penstock(service: Service) -> AsyncIterator[Shell]:
    async with listening(service) as server:
        yield Shell({"PENSTOCK_URL": server.url})


@pytest.mark.breadth
async def test_the_commands_do_all_of_it(penstock: Shell) -> None:
    made = (await penstock("webhooks", "create", URL, "--event", "job.failed", "--json")).document()
    assert made["events"] == ["job.failed"]
    shown = await penstock("webhooks", "list")
    assert URL in shown.out
    assert made["secret"] not in shown.out
    rotated = await penstock("webhooks", "rotate", made["id"], "--overlap", "60")
    assert "whsec_" in rotated.out
    changed = await penstock("webhooks", "change", made["id"], "--disable", "--json")
    assert (changed.document()["enabled"], changed.document()["events"]) == (False, ["job.failed"])
    for words in ([], ["--enable", "--disable"]):
        refused = await penstock("webhooks", "change", made["id"], *words)
        assert (refused.code, refused.out) == (2, "")
        assert "--enable" in refused.err
    assert (await penstock("webhooks", "change", made["id"], "--enable", "--json")).document()["enabled"] is True
    assert (await penstock("webhooks", "change", made["id"], "--disable")).code == 0
    assert (await penstock("webhooks", "test", made["id"])).code == 3
    assert (await penstock("webhooks", "deliveries", made["id"], "--json")).document() == []
    assert (await penstock("deliveries", "dead-letters", "--json")).document() == []
    assert (await penstock("deliveries", "dead-letters", "--redeliver")).out == "0 deliveries are sent again\n"
    assert (await penstock("webhooks", "delete", made["id"])).code == 0
    refused = await penstock("webhooks", "create", "http://10.0.0.1/")
    assert (refused.code, refused.out) == (3, "")
    assert "/url" in refused.err
