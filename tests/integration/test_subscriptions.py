"""Subscriptions over HTTP, by the client and by the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.client import AsyncClient, PenstockAPIError
from penstock.storage.journal.subscriptions import SubscriptionKey, find_subscription
from penstock.storage.redis import catalogues
from penstock.storage.redis.records import JobStore
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import ECHO, Service, assert_problem, serving
from tests.support.stac_api import StacApi, square, stac_api, stac_item
from tests.support.subscribing import MAPPER, Subscribed
from tests.support.valkey import ValkeyProcess

BASE = "/v1/subscriptions"


@pytest.fixture
def api() -> Iterator[StacApi]:
    with stac_api() as api:
        yield api


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path, api: StacApi) -> AsyncIterator[Service]:
    allowed = (f"127.0.0.1:{api.port}", "files.test:80")
    async with serving(valkey.url, tmp_path, allowed_hosts=allowed, max_tenant_subscriptions=3) as service:
        await service.jobs.run(catalogues.publish([MAPPER, ECHO], worker="w", queues=["default"], alive_s=600))
        yield service


def body(api: StacApi, **more: Any) -> dict[str, Any]:
    return {"name": "lagoon", "stac": api.url, "collections": ["scenes"], "model": "mapper", **more}


async def test_a_subscription_is_made_shown_paused_resumed_and_deleted(service: Service, api: StacApi) -> None:
    wanted = body(
        api, area=square(0, 0, 1), filter="eo:cloud_cover < 20", since="2026-01-01T00:00:00+01:00", max_jobs_a_day=5,
        webhook={"url": "http://files.test:80/hook"}, input={"outputs": ["stats"]}, every=600, look_back=86_400,
    )  # fmt: skip
    made = await service.http.post(BASE, json=wanted)
    assert made.status_code == 201, made.text
    assert made.headers["location"].endswith(f"{BASE}/lagoon")
    shown = (await service.http.get(f"{BASE}/lagoon")).json()
    assert shown == made.json()
    assert (shown["state"], shown["since"], shown["jobs"], shown["notes"]) == ("active", "2025-12-31T23:00:00Z", 0, [])
    assert {name: shown[name] for name in ("filter", "area", "input", "every")} == {
        name: wanted[name] for name in ("filter", "area", "input", "every")
    }
    assert (await service.http.get(BASE)).json() == {"subscriptions": [shown]}
    again = await service.http.post(BASE, json=wanted)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
    assert_problem(await service.http.post(BASE, json={**wanted, "every": 700}), 409, "state_conflict")
    paused = (await service.http.post(f"{BASE}/lagoon/pause")).json()
    assert (paused["state"], paused["next_look_at"]) == ("paused", None)
    assert (await service.http.post(f"{BASE}/lagoon/resume")).json()["state"] == "active"
    assert (await service.http.delete(f"{BASE}/lagoon")).status_code == 204
    for method, path in (("get", ""), ("delete", ""), ("post", "/pause"), ("post", "/resume")):
        problem = await getattr(service.http, method)(f"{BASE}/lagoon{path}")
        assert_problem(problem, 404, "unknown_subscription")
    assert (await service.http.post(BASE, json={**wanted, "every": 700})).status_code == 201


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": "a/b"}, "/name"),
        ({"name": ".."}, "/name"),
        ({"stac": "http://10.0.0.1/"}, "/stac"),
        ({"stac": "file:///etc/passwd"}, "/stac"),
        ({"collections": []}, "/collections"),
        ({"collections": ["a,b"]}, "/collections/0"),
        ({"filter": "cloudy"}, "/filter"),
        ({"area": {"type": "Point", "coordinates": [0, 0]}}, "/area"),
        ({"area": square(175, 0, 10)}, "/area"),
        ({"every": 30}, "/every"),
        ({"since": "2026-01-01"}, "/since"),
        ({"max_jobs_a_day": 0}, "/max_jobs_a_day"),
        ({"webhook": {"url": "http://10.0.0.1/"}}, "/webhook/url"),
        ({"model": "echo"}, "/model"),
        ({"input": {"size": 3}}, "/input/size"),
        ({"cron": "* * * * *"}, "/cron"),
    ],
)
async def test_what_cannot_be_a_subscription_is_refused_with_a_pointer(
    service: Service, api: StacApi, change: dict[str, Any], pointer: str
) -> None:
    problem = assert_problem(await service.http.post(BASE, json=body(api, **change)), 422, "invalid_request")
    assert next(issue["pointer"] for issue in problem["errors"]).startswith(pointer)
    assert (await service.http.get(BASE)).json() == {"subscriptions": []}


async def test_an_unknown_model_is_refused_and_the_number_of_subscriptions_is_limited(
    service: Service, api: StacApi
) -> None:
    assert_problem(await service.http.post(BASE, json=body(api, model="nobody")), 422, "unknown_model")
    for number in range(3):
        assert (await service.http.post(BASE, json=body(api, name=f"n{number}"))).status_code == 201
    assert_problem(await service.http.post(BASE, json=body(api, name="n3")), 409, "state_conflict")
    assert (await service.http.post(BASE, json=body(api, name="n2"))).status_code == 201


async def test_its_progress_shows_what_was_seen_and_why_it_was_skipped(
    service: Service, api: StacApi, store: JobStore
) -> None:
    await service.http.post(BASE, json=body(api, filter="eo:cloud_cover < 20", since="2026-01-01T00:00:00Z"))
    found = find_subscription(service.objects, SubscriptionKey("default", "lagoon"))
    assert found is not None
    desk = Subscribed(api, store, service.objects, Path(service.settings.data))
    times = [datetime(2026, 1, day, tzinfo=UTC).timestamp() for day in (3, 4)]
    api.put(stac_item("clear", times[0]), stac_item("cloudy", times[1], cloud=95))
    odd = stac_item("odd", times[0])
    timeless = [{**odd, "id": name, "properties": {"datetime": None}} for name in ("one", "two")]
    others = [{**odd, "id": None}, {**odd, "collection": "other"}, {**odd, "type": "Collection"}]
    api.arrange = lambda found: [*found, *timeless, *others]
    desk.now_s = times[1] + 3600
    desk.keeper().step()
    shown = (await service.http.get(f"{BASE}/lagoon")).json()
    counts = {"found": 2, "new": 1, "done": 0, "filtered": 1, "outside": 0, "waiting": 0}
    passed_over = {
        "without a time": 2,
        "without a usable id": 1,
        "of other collections": 1,
        "of another type than Feature": 1,
    }
    assert shown["last_look"] == {**counts, "unread": passed_over}
    assert shown["last_look_at"] == shown["seen_until"] == "2026-01-04T01:00:00Z"
    notes = {note["item"]: note for note in shown["notes"]}
    assert notes["clear"]["job"] == (await service.http.get("/v1/jobs")).json()["jobs"][0]["id"]
    assert "eo:cloud_cover is 95" in notes["cloudy"]["reason"]


async def test_the_client_and_the_command_line_do_the_same(service: Service, api: StacApi, tmp_path: Path) -> None:
    area = tmp_path / "aoi.geojson"
    area.write_text(json.dumps(square(0, 0, 1)))
    async with listening(service) as server, AsyncClient(server.url) as client:
        made = await client.create_subscription(
            "river", stac=api.url, collections=["scenes"], model="mapper", since=datetime(2026, 1, 1, tzinfo=UTC),
            every_s=600,
        )  # fmt: skip
        assert (made.name, made.every, made.since) == ("river", 600, datetime(2026, 1, 1, tzinfo=UTC))
        assert (await client.pause_subscription("river")).state == "paused"
        shell = Shell({"PENSTOCK_URL": server.url})

        async def said(*words: str) -> str:
            done = await shell("subscriptions", *words)
            assert done.code == 0, done.err
            return done.out

        lines = await said(
            "create", "lagoon", "--stac", api.url, "--collection", "scenes", "--area", str(area),
            "--filter", "eo:cloud_cover < 20", "--model", "mapper", "--every", "15m", "--look-back", "2d", "--from",
            "2026-01-01", "--max-jobs-a-day", "5", "--param", "outputs=stats",
        )  # fmt: skip
        assert "lagoon" in lines
        found = await client.subscription("lagoon")
        assert (found.every, found.look_back, found.max_jobs_a_day, found.input) == (
            900,
            172_800,
            5,
            {"outputs": ["stats"]},
        )
        assert found.since == datetime(2026, 1, 1, tzinfo=UTC)
        assert "paused" in await said("list")
        assert "active" in await said("resume", "river")
        assert "last look: 0 items" in await said("show", "lagoon")
        assert "deleted" in await said("delete", "lagoon")
        assert [each.name for each in await client.subscriptions()] == ["river"]
        with pytest.raises(PenstockAPIError, match="there is no subscription 'lagoon'"):
            await client.subscription("lagoon")


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [("--every", "9" * 400, "write a duration such as"), ("--area", "deep.geojson", "not JSON")],
)
async def test_an_option_without_end_is_refused_in_one_sentence(
    option: str, value: str, sentence: str, service: Service, api: StacApi, tmp_path: Path
) -> None:
    (tmp_path / "deep.geojson").write_text("[" * 100_000)
    given = str(tmp_path / value) if option == "--area" else value
    async with listening(service) as server:
        done = await Shell({"PENSTOCK_URL": server.url})(
            "subscriptions", "create", "lagoon", "--stac", api.url, "--collection", "scenes", "--model", "mapper",
            option, given,
        )  # fmt: skip
    said = " ".join(done.err.replace("│", " ").split())
    assert (done.code, sentence in said, "Traceback" in said) == (2, True, False), said
