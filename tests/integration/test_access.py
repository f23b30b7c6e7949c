"""Access: every route of the app with every kind of key."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from penstock.api.auth import Tenant
from penstock.api.facades.errors import VLLM_ROUTES
from penstock.api_keys import PREFIX, Scope, new_key
from penstock.storage.journal.api_keys import put_key, revoke_key
from penstock.storage.journal.subscriptions import Subscription, SubscriptionKey, create_subscription
from penstock.storage.redis import loads
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

SECRET = "of the tests"
ECHO = {"model": "echo", "input": {"text": "hi"}}
HOOK = {"url": "https://example.com/"}
SAYS = {"role": "user", "content": "hi"}
SCORE = {"model": "echo", "text_1": "a", "text_2": "b"}
RERANK = {"model": "echo", "query": "a", "documents": ["b"]}
RUN = {"input": {"text": "hello"}}
OPENAI_BATCH = {"input_file_id": "file-none", "endpoint": "/v1/completions", "completion_window": "24h"}
SUBSCRIPTION = {"name": "a", "stac": "http://files.test/", "collections": ["b"], "model": "echo"}
FILE = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 5}


MADE = Subscription(
    SubscriptionKey("acme", "default"), "uid", "http://files.test/", ("b",), "echo",
    every_s=900, look_back_s=0, since_s=0, created_s=0,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A route's expectations: the scope (None = open to all, `any` = any key), and the answer to a key that has it."""

    scope: str | None
    status: int
    body: Any = None
    #: The job that a path names: `done`, or `canceled` (with a delivery).
    job: str = "done"

    def names(self, path: str) -> str:
        """Return which of the tenant's things a path names."""
        if "{batch_id}" in path or "{upload_id}" in path:
            return "batch" if "{batch_id}" in path else "upload"
        return "endpoint" if "{endpoint_id}" in path else "canceled" if "/v1/deliveries/" in path else self.job


#: Every route, written by hand.
ROUTES = {
    ("GET", "/"): Row(None, 307),
    ("GET", "/docs"): Row(None, 200),
    ("GET", "/docs/oauth2-redirect"): Row(None, 200),
    ("GET", "/openapi.json"): Row(None, 200),
    ("HEAD", "/openapi.json"): Row(None, 200),
    ("GET", "/livez"): Row(None, 200),
    ("HEAD", "/livez"): Row(None, 200),
    ("GET", "/readyz"): Row(None, 200),
    ("HEAD", "/readyz"): Row(None, 200),
    # A link that is not signed is refused whoever asks.
    ("GET", "/v1/local/{key:path}"): Row(None, 403),
    ("HEAD", "/v1/local/{key:path}"): Row(None, 403),
    ("PUT", "/v1/local/{key:path}"): Row(None, 403),
    ("GET", "/v1/tiles/{tenant}/{job_id}/{kind}/{name:path}"): Row(None, 403),
    ("GET", "/v1/key"): Row("any", 200),
    ("GET", "/v1/events"): Row("read", 200),
    ("GET", "/v1/usage"): Row("read", 200),
    ("GET", "/v1/tenants"): Row("admin", 200),
    ("GET", "/v1/models"): Row("read", 200),
    ("GET", "/v1/models/{name:path}"): Row("read", 200),
    ("HEAD", "/v1/models/{name:path}"): Row("read", 200),
    ("GET", "/v1/jobs"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}"): Row("read", 200),
    ("HEAD", "/v1/jobs/{job_id}"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}/events"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}/artifacts/{name:path}"): Row("read", 200),
    ("HEAD", "/v1/jobs/{job_id}/artifacts/{name:path}"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}/output"): Row("read", 200),
    ("HEAD", "/v1/jobs/{job_id}/output"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}/deliveries"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}/logs"): Row("read", 200),
    ("GET", "/v1/jobs/{job_id}/links"): Row("read", 200),
    ("POST", "/v1/jobs"): Row("submit", 202, ECHO),
    ("PUT", "/v1/jobs/{job_id}"): Row("submit", 200, ECHO),  # the same request again
    ("DELETE", "/v1/jobs/{job_id}"): Row("submit", 204),
    ("POST", "/v1/jobs/{job_id}/cancel"): Row("submit", 200),
    ("POST", "/v1/jobs/{job_id}/retry"): Row("submit", 202, job="canceled"),
    ("POST", "/v1/uploads"): Row("submit", 201, FILE),
    ("GET", "/v1/uploads/{upload_id}/{name}"): Row("submit", 200),
    ("DELETE", "/v1/uploads/{upload_id}/{name}"): Row("submit", 204),
    ("POST", "/v1/uploads/{upload_id}/{name}/parts"): Row("submit", 201, {"number": 1, "size_bytes": 5}),
    # Its parts have not arrived.
    ("POST", "/v1/uploads/{upload_id}/{name}/complete"): Row("submit", 422, {"size_bytes": 5}),
    ("POST", "/v1/jobs/{job_id}/deliveries/{delivery_id}/redeliver"): Row("webhooks", 202, job="canceled"),
    ("GET", "/v1/batches"): Row("read", 200),
    ("GET", "/v1/batches/{batch_id}"): Row("read", 200),
    # A batch that is not over has no results yet.
    ("GET", "/v1/batches/{batch_id}/artifacts/{name:path}"): Row("read", 404),
    ("HEAD", "/v1/batches/{batch_id}/artifacts/{name:path}"): Row("read", 404),
    ("POST", "/v1/batches"): Row("submit", 202, {"requests": [ECHO]}),
    ("POST", "/v1/batches/{batch_id}/cancel"): Row("submit", 202),
    ("DELETE", "/v1/batches/{batch_id}"): Row("submit", 202),
    ("GET", "/v1/deliveries/dead-letters"): Row("webhooks", 200),
    ("POST", "/v1/deliveries/dead-letters/redeliver"): Row("webhooks", 202),
    ("GET", "/v1/deliveries/{delivery_id}"): Row("webhooks", 200),
    ("POST", "/v1/deliveries/{delivery_id}/redeliver"): Row("webhooks", 202),
    ("POST", "/v1/webhook-endpoints"): Row("webhooks", 201, HOOK),
    ("GET", "/v1/webhook-endpoints"): Row("webhooks", 200),
    ("GET", "/v1/webhook-endpoints/{endpoint_id}"): Row("webhooks", 200),
    ("PATCH", "/v1/webhook-endpoints/{endpoint_id}"): Row("webhooks", 200, {"description": "ours"}),
    ("DELETE", "/v1/webhook-endpoints/{endpoint_id}"): Row("webhooks", 204),
    ("POST", "/v1/webhook-endpoints/{endpoint_id}/rotate"): Row("webhooks", 200),
    ("POST", "/v1/webhook-endpoints/{endpoint_id}/test"): Row("webhooks", 202),
    ("GET", "/v1/webhook-endpoints/{endpoint_id}/deliveries"): Row("webhooks", 200),
    # The model takes no STAC items.
    ("POST", "/v1/subscriptions"): Row("submit", 422, SUBSCRIPTION),
    ("GET", "/v1/subscriptions"): Row("read", 200),
    ("GET", "/v1/subscriptions/{name}"): Row("read", 200),
    ("POST", "/v1/subscriptions/{name}/pause"): Row("submit", 200),
    ("POST", "/v1/subscriptions/{name}/resume"): Row("submit", 200),
    ("DELETE", "/v1/subscriptions/{name}"): Row("submit", 204),
    # It has no results yet.
    ("GET", "/v1/subscriptions/{name}/stac/{path:path}"): Row("read", 404),
    ("HEAD", "/v1/subscriptions/{name}/stac/{path:path}"): Row("read", 404),
    # The models that this service has do none of this.
    ("POST", "/pooling"): Row("submit", 404, {"model": "echo", "data": {"data": "https://a/b", "data_format": "url"}}),
    **{("POST", route): Row("submit", 404, SCORE) for route in ("/score", "/v1/score")},
    **{("POST", route): Row("submit", 404, RERANK) for route in ("/rerank", "/v1/rerank", "/v2/rerank")},
    ("POST", "/classify"): Row("submit", 404, {"model": "echo", "input": "a"}),
    ("POST", "/runpod/v2/{endpoint}/run"): Row("submit", 200, RUN),
    ("POST", "/runpod/v2/{endpoint}/runsync"): Row("submit", 400, {**RUN, "input": {"n": 1}}),  # without a wait
    ("GET", "/runpod/v2/{endpoint}/status/{job_id}"): Row("read", 200),
    ("GET", "/runpod/v2/{endpoint}/stream/{job_id}"): Row("read", 200),
    ("POST", "/runpod/v2/{endpoint}/cancel/{job_id}"): Row("submit", 200),
    ("POST", "/runpod/v2/{endpoint}/retry/{job_id}"): Row("submit", 200, job="canceled"),
    ("GET", "/runpod/v2/{endpoint}/health"): Row("read", 200),
    ("POST", "/runpod/v2/{endpoint}/purge-queue"): Row("submit", 200),
    ("GET", "/openai/v1/models"): Row("read", 200),
    ("GET", "/openai/v1/models/{name:path}"): Row("read", 404),
    ("POST", "/openai/v1/chat/completions"): Row("submit", 404, {"model": "echo", "messages": [SAYS]}),
    ("POST", "/openai/v1/responses"): Row("submit", 404, {"model": "echo", "input": "hi"}),
    ("GET", "/openai/v1/responses/{response_id}"): Row("read", 404),
    ("POST", "/openai/v1/responses/{response_id}/cancel"): Row("submit", 404),
    ("POST", "/openai/v1/completions"): Row("submit", 404, {"model": "echo", "prompt": "hi"}),
    ("POST", "/openai/v1/embeddings"): Row("submit", 404, {"model": "echo", "input": "hi"}),
    ("POST", "/openai/v1/images/generations"): Row("submit", 404, {"model": "echo", "prompt": "hi"}),
    # Files come as forms.
    ("POST", "/openai/v1/images/edits"): Row("submit", 400, {}),
    ("POST", "/openai/v1/audio/transcriptions"): Row("submit", 415, {}),
    ("POST", "/openai/v1/audio/translations"): Row("submit", 415, {}),
    ("POST", "/openai/v1/files"): Row("submit", 415, {}),
    ("GET", "/openai/v1/files"): Row("read", 200),
    ("GET", "/openai/v1/files/{file_id}"): Row("read", 404),
    ("GET", "/openai/v1/files/{file_id}/content"): Row("read", 404),
    ("DELETE", "/openai/v1/files/{file_id}"): Row("submit", 404),
    ("POST", "/openai/v1/batches"): Row("submit", 404, OPENAI_BATCH),
    ("GET", "/openai/v1/batches"): Row("read", 200),
    # One that was made by the API of our own.
    ("GET", "/openai/v1/batches/{batch_id}"): Row("read", 404),
    ("POST", "/openai/v1/batches/{batch_id}/cancel"): Row("submit", 404),
    ("GET", "/ogc"): Row(None, 200),
    ("GET", "/ogc/"): Row(None, 200),
    ("GET", "/ogc/conformance"): Row(None, 200),
    ("GET", "/ogc/processes"): Row("read", 200),
    ("GET", "/ogc/processes/{process_id}"): Row("read", 200),
    ("GET", "/ogc/jobs"): Row("read", 200),
    ("GET", "/ogc/jobs/{job_id}"): Row("read", 200),
    ("GET", "/ogc/jobs/{job_id}/results"): Row("read", 200),
    ("GET", "/ogc/jobs/{job_id}/results/{output}"): Row("read", 200),
    ("POST", "/ogc/processes/{process_id}/execution"): Row("submit", 201, {"inputs": {"text": "hi"}}),
    ("DELETE", "/ogc/jobs/{job_id}"): Row("submit", 200),
    # Without a drop rule that waits for events nothing is taken.
    ("POST", "/v1/events/s3"): Row("events", 404, {"Records": []}),
    ("GET", "/metrics"): Row("monitor", 200),
    ("GET", "/v1/workers"): Row("monitor", 200),
    # No worker is live.
    ("GET", "/v1/workers/{worker_id}/logs"): Row("admin", 404),
    ("GET", "/v1/drops"): Row("monitor", 200),
    ("GET", "/v1/queues"): Row("monitor", 200),
    ("GET", "/v1/queues/{name}"): Row("monitor", 200),
    ("POST", "/v1/queues/{name}/pause"): Row("admin", 200),
    ("POST", "/v1/queues/{name}/drain"): Row("admin", 200),
    ("POST", "/v1/queues/{name}/resume"): Row("admin", 200),
    ("POST", "/v1/queues/{name}/purge"): Row("admin", 200),
    ("GET", "/v1/queues/{name}/dead-letters"): Row("admin", 200),
    ("POST", "/v1/queues/{name}/dead-letters/requeue"): Row("admin", 200),
}
GUARDED = [route for route, row in ROUTES.items() if row.scope is not None]
SCOPED = [route for route in GUARDED if ROUTES[route].scope != "any"]
OWNED = ("{job_id}", "{batch_id}", "{upload_id}", "{endpoint_id}", "{delivery_id}", "subscriptions/{name}")
OF_A_TENANT = [route for route in GUARDED if any(name in route[1] for name in OWNED) and route[0] != "PUT"]
#: Not routes but folders of files: the documentation's scripts, and the page.
MOUNTS = {"/docs/static", "/ui"}


@dataclass
class World:
    """A service with keys, and the tenant `acme` with two jobs, a batch, a webhook endpoint and a subscription."""

    service: Service
    ids: dict[str, str]

    def key(self, tenant: str = "acme", scopes: Any = tuple(Scope), **changes: Any) -> str:
        """Make a key and return its text."""
        options = {"name": "", "created_s": time.time(), "expires_s": None, "secret": SECRET, **changes}
        record, text = new_key(options.pop("secret"), tenant=tenant, scopes=scopes, **options)
        put_key(self.service.objects, record)
        return text

    async def ask(self, route: tuple[str, str], key: str | None, *, named: str | None = None) -> httpx2.Response:
        """Send what the route takes, of what `acme` has or of another id."""
        (verb, path), row = route, ROUTES[route]
        named = named or self.ids[row.names(path)]
        filled = (
            path.replace("{job_id}", named)
            .replace("{endpoint_id}", named)
            .replace("{endpoint}", "echo")
            .replace("{batch_id}", named)
            .replace("{name:path}", "echo" if "models" in path else "map.tif")
            .replace("{key:path}", f"tenants/acme/jobs/{named}/request.json")
            .replace("{upload_id}/{name}", f"{named}/a.tif")
            .replace("{delivery_id}", f"msg_{named}_job.canceled")
            .replace("{process_id}", "echo")
            .replace("{worker_id}", "w")
            .replace("{output}", "text")
            .replace("{path:path}", "collection.json")
            .replace("{name}", "echo" if "models" in path else "default")
        )
        headers = {"Accept": "application/json", "Prefer": "respond-async"} | (
            {} if key is None else {"Authorization": f"Bearer {key}"}
        )
        return await self.service.http.request(verb, filled, json=row.body, headers=headers)


@pytest.fixture
async def world(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[World]:
    """Return a service in key mode with the things of `acme`."""
    async with serving(valkey.url, tmp_path, access="keys") as service:
        world = World(service, {})
        me = {"Authorization": f"Bearer {world.key()}"}
        done = await service.http.post("/v1/jobs", json=ECHO, headers=me)
        claim = await service.claim()
        await service.succeed(claim, artifacts=(service.store_artifact(claim, "map.tif", b"a map", "image/tiff"),))
        hooked = {**ECHO, "webhook": {"url": "https://example.com/"}}
        canceled = await service.http.post("/v1/jobs", json=hooked, headers=me)
        await service.http.post(f"/v1/jobs/{canceled.json()['id']}/cancel", headers=me)
        endpoint = await service.http.post("/v1/webhook-endpoints", json=HOOK, headers=me)
        batch = await service.http.post("/v1/batches", json={"requests": [ECHO]}, headers=me)
        upload = await service.http.post("/v1/uploads", json={**FILE, "multipart": True}, headers=me)
        made = {"batch": batch, "upload": upload, "done": done, "canceled": canceled, "endpoint": endpoint}
        create_subscription(service.objects, MADE)
        world.ids = {name: answer.json()["id"] for name, answer in made.items()}
        yield world


def seen(response: httpx2.Response) -> tuple[int, dict[str, str], bytes]:
    """Return all that a client gets."""
    return response.status_code, dict(response.headers), response.content


def assert_refusal(route: tuple[str, str], answer: httpx2.Response, status: int, code: str) -> str:
    """Check that an answer is a refusal of this kind, as the route's interface says it, and return its sentence."""
    if not route[1].startswith(("/openai/", "/runpod/", *VLLM_ROUTES)):
        return str(assert_problem(answer, status, code)["detail"])
    assert answer.status_code == status
    error = answer.json()["error"]
    if route[1].startswith("/runpod/"):
        assert answer.json() == {"error": error, "code": code, "status": status}
        return str(error)
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["message"])


def routes_of(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Yield every (verb, path) of an app, and what is no route under no verb."""
    for route in iter_route_contexts(app.routes):
        assert route.path is not None
        for verb in getattr(route, "methods", None) or getattr(route.original_route, "methods", None) or [""]:
            yield verb, route.path


async def test_no_route_is_forgotten(world: World) -> None:
    found = set(routes_of(world.service.app))
    assert found == set(ROUTES) | {("", path) for path in MOUNTS}


async def test_every_route_refuses_a_wrong_key_a_missing_scope_and_another_tenant(world: World) -> None:
    """In one service, as what is refused changes nothing. Below, each route has a service of its own."""
    for route in GUARDED:
        assert [(await world.ask(route, key)).status_code for key in (None, "nonsense")] == [401, 401], route
    for route in SCOPED:
        others = world.key(scopes=[scope for scope in Scope if scope != ROUTES[route].scope])
        assert (await world.ask(route, others)).status_code == 403, route
    other = world.key("other")
    for route in OF_A_TENANT:
        assert (await world.ask(route, other)).status_code == 404, route


@pytest.mark.breadth(every=4)
@pytest.mark.parametrize("route", [route for route, row in ROUTES.items() if row.scope is None], ids=" ".join)
async def test_what_is_open_asks_nobody(world: World, route: tuple[str, str]) -> None:
    answers = [await world.ask(route, key) for key in (None, "nonsense", world.key())]
    assert [answer.status_code for answer in answers] == [ROUTES[route].status] * 3


@pytest.mark.breadth(every=8)
@pytest.mark.parametrize("route", GUARDED, ids=" ".join)
async def test_whatever_is_wrong_with_a_key_is_answered_alike(world: World, route: tuple[str, str]) -> None:
    revoked, expired = world.key(), world.key(expires_s=time.time() - 1)
    revoke_key(world.service.objects, revoked.removeprefix(PREFIX)[:14], at=time.time())
    _, unknown = new_key(SECRET, tenant="acme", name="", scopes=Scope, created_s=0, expires_s=None)
    foreign = world.key(secret="of another service")
    good = world.key()
    mistyped = good[:-1] + ("0" if good[-1] != "0" else "1")
    wrong = [None, "", "nonsense", mistyped, foreign, unknown, revoked, expired, f"{good} {good}", "\x7f" * 5000]

    answers = [await world.ask(route, key) for key in wrong]

    assert len({str(seen(answer)) for answer in answers}) == 1
    assert answers[0].status_code == 401
    assert answers[0].headers["www-authenticate"] == "Bearer"
    if route[0] != "HEAD":
        assert_refusal(route, answers[0], 401, "unauthorized")
    assert (await world.ask(route, good)).status_code == ROUTES[route].status


async def test_the_health_of_an_endpoint_shows_only_the_jobs_of_the_keys_tenant(world: World) -> None:
    """`/v1/queues` shows those of all tenants, and needs the scope `monitor`."""
    own, other = world.key(), {"Authorization": f"Bearer {world.key('other')}"}
    for _ in range(3):
        await world.service.http.post("/v1/jobs", json=ECHO, headers=other)
    await world.service.claim()
    reader = world.key(scopes=[Scope.READ])
    health = (await world.ask(("GET", "/runpod/v2/{endpoint}/health"), reader)).json()
    assert (health["jobs"]["inQueue"], health["jobs"]["inProgress"], health["workers"]["running"]) == (0, 0, 0)
    assert (await world.ask(("GET", "/v1/queues/{name}"), reader)).status_code == 403
    for _ in range(2):
        await world.ask(("POST", "/v1/jobs"), own)
    assert (await world.ask(("GET", "/runpod/v2/{endpoint}/health"), reader)).json()["jobs"]["inQueue"] == 2
    jobs = (await world.service.http.get("/runpod/v2/echo/health", headers=other)).json()["jobs"]
    assert (jobs["inQueue"], jobs["inProgress"]) == (2, 1)


@pytest.mark.parametrize("scope", Scope)
async def test_any_key_may_ask_for_its_own_scopes(world: World, scope: Scope) -> None:
    answer = await world.ask(("GET", "/v1/key"), world.key("other", scopes=[scope], name="mine"))
    view = answer.json()
    assert (view["tenant"], view["name"], view["scopes"], view["open"]) == ("other", "mine", [scope.value], False)


@pytest.mark.breadth(every=8)
@pytest.mark.parametrize("route", SCOPED, ids=" ".join)
async def test_every_other_scope_is_refused(world: World, route: tuple[str, str]) -> None:
    row = ROUTES[route]
    for scopes in ([scope] for scope in Scope if scope != row.scope):
        answer = await world.ask(route, world.key(scopes=scopes))
        assert answer.status_code == 403
        if route[0] != "HEAD":
            assert f"needs the scope {row.scope}" in assert_refusal(route, answer, 403, "insufficient_scope")
    others = [scope for scope in Scope if scope != row.scope]
    assert (await world.ask(route, world.key(scopes=others))).status_code == 403
    assert (await world.ask(route, world.key(scopes=[Scope(row.scope or "")]))).status_code == row.status


@pytest.mark.breadth(every=8)
@pytest.mark.parametrize("route", OF_A_TENANT, ids=" ".join)
async def test_what_is_anothers_is_missing(world: World, route: tuple[str, str]) -> None:
    other, missing = world.key("other"), str(uuid.uuid4())
    foreign, absent = await world.ask(route, other), await world.ask(route, other, named=missing)

    assert foreign.status_code == 404
    mine = world.ids[ROUTES[route].names(route[1])]
    assert str(seen(foreign)).replace(mine, missing) == str(seen(absent))
    assert (await world.ask(route, world.key())).status_code == ROUTES[route].status


async def test_a_route_that_nobody_declared_is_open_to_nobody(world: World) -> None:
    @world.service.app.get("/v1/secrets")
    async def secrets(tenant: Tenant) -> str:
        return tenant

    ROUTES["GET", "/v1/secrets"] = Row("read", 200)
    try:
        assert_problem(await world.ask(("GET", "/v1/secrets"), None), 401, "unauthorized")
        assert_problem(await world.ask(("GET", "/v1/secrets"), world.key()), 403, "insufficient_scope")
    finally:
        del ROUTES["GET", "/v1/secrets"]
    assert isinstance(world.service.app.routes[-1], APIRoute)


async def test_an_id_is_each_tenants_own(world: World) -> None:
    key, other = world.key(), {"Authorization": f"Bearer {world.key('other')}"}
    job_id = world.ids["done"]

    answer = await world.service.http.put(f"/v1/jobs/{job_id}", json=ECHO, headers=other)

    assert (answer.status_code, answer.json()["status"]) == (202, "queued")
    assert (await world.ask(("GET", "/v1/jobs/{job_id}"), key)).json()["status"] == "succeeded"
    assert [job["id"] for job in (await world.service.http.get("/v1/jobs", headers=other)).json()["jobs"]] == [job_id]


async def test_an_idempotency_key_is_each_tenants_own(world: World) -> None:
    made = set()
    for tenant in ("acme", "other"):
        headers = {"Authorization": f"Bearer {world.key(tenant)}", "Idempotency-Key": "once"}
        made |= {(await world.service.http.post("/v1/jobs", json=ECHO, headers=headers)).json()["id"] for _ in range(2)}
    assert len(made) == 2


async def test_no_body_or_header_names_a_tenant(world: World) -> None:
    headers = {"Authorization": f"Bearer {world.key('other')}", "X-Tenant": "acme", "Tenant": "acme"}
    http = world.service.http

    assert_problem(
        await http.post("/v1/jobs", json={**ECHO, "tenant": "acme"}, headers=headers), 422, "invalid_request"
    )
    assert (await http.get("/v1/jobs?tenant=acme", headers=headers)).status_code == 422
    assert (await http.get("/v1/jobs", headers=headers)).json()["jobs"] == []


async def test_anothers_upload_is_a_missing_one(world: World) -> None:
    place = (await world.ask(("POST", "/v1/uploads"), world.key())).json()
    assert (await world.service.http.put(place["url"], headers=place["headers"], content=b"12345")).status_code == 200
    upload_id, missing = place["id"], str(uuid.uuid4())

    async def submit(key: str, media_id: str) -> httpx2.Response:
        body = {"model": "echo", "input": {"text": "hi", "scene": f"media://{media_id}/a.tif"}}
        return await world.service.http.post("/v1/jobs", json=body, headers={"Authorization": f"Bearer {key}"})

    foreign, absent = await submit(world.key("other"), upload_id), await submit(world.key("other"), missing)
    assert_problem(foreign, 422, "media_not_found")
    assert str(seen(foreign)).replace(upload_id, missing) == str(seen(absent))
    assert (await submit(world.key(), upload_id)).status_code == 202


async def test_a_purge_and_the_dead_letters_are_of_ones_own_jobs(world: World) -> None:
    waiting = (await world.ask(("POST", "/v1/jobs"), world.key())).json()["id"]
    other = world.key("other")

    assert (await world.ask(("POST", "/v1/queues/{name}/purge"), other)).json() == {"canceled": 0, "more": False}
    for _ in range(world.service.settings.max_crashes):
        await world.service.claim()
        await world.service.lose_lease(waiting, tenant="acme")
    letters = ("GET", "/v1/queues/{name}/dead-letters")
    assert (await world.ask(letters, other)).json() == {"jobs": []}
    assert [job["id"] for job in (await world.ask(letters, world.key())).json()["jobs"]] == [waiting]
    requeue = ("POST", "/v1/queues/{name}/dead-letters/requeue")
    assert (await world.ask(requeue, other)).json() == {"jobs": [], "more": False}


async def test_the_description_says_what_each_route_asks_for(world: World) -> None:
    document = (await world.service.http.get("/openapi.json")).json()
    (name, scheme), = document["components"]["securitySchemes"].items()  # fmt: skip
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    wanted = {(verb, path.replace(":path", "")): row.scope for (verb, path), row in ROUTES.items()}
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            scope = wanted[verb.upper(), path]
            scopes = [] if scope == "any" else [scope]
            assert operation["security"] == ([] if scope is None else [{name: scopes}])
            assert ({"401", "403"} <= operation["responses"].keys()) == (scope is not None)


async def test_an_open_service_describes_no_keys(service: Service) -> None:
    document = (await service.http.get("/openapi.json")).json()
    assert "security" not in str(document)


async def test_machines_and_lines_of_failed_loads_are_for_operators(world: World) -> None:
    failed = loads.load_failed("echo", "a", record="1", how="was ended by SIGABRT", lines=("no such symbol",))
    await world.service.jobs.run(failed)
    route = ("GET", "/v1/models/{name:path}")
    operators = (await world.ask(route, world.key(scopes=[Scope.READ, Scope.ADMIN]))).json()
    tenants = (await world.ask(route, world.key(scopes=[Scope.READ]))).json()
    assert [row["machine"] for row in operators["load_failures"]] == ["a"]
    assert tenants["load_failures"] == []
