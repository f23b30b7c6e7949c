"""The report of usage over HTTP, by both clients and by the command line: own sums for each, all for administrators."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.api_keys import Scope, new_key
from penstock.client import AsyncClient
from penstock.config_tables import TenantLimits
from penstock.jobs import State, Usage
from penstock.storage.journal.api_keys import put_key
from penstock.storage.redis.records import Outcome
from penstock.storage.redis.usage import day_at, note_kept
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

USED = Usage(1.25, 2_000_000, 300, tokens_in=40, tokens_out=2, pixels=1_048_576)


async def end_one(service: Service, state: State = State.SUCCEEDED) -> None:
    await service.submit()
    await service.end(await service.claim(), Outcome(state, usage=USED))


async def test_a_report_has_a_row_for_each_model_and_day_and_their_sum(service: Service) -> None:
    for state in (State.SUCCEEDED, State.SUCCEEDED, State.FAILED):
        await end_one(service, state)
    today = day_at(time.time())
    found = (await service.http.get("/v1/usage")).json()
    assert (found["from"], found["to"]) == (str(today - timedelta(days=30)), str(today))
    [row] = found["rows"]
    assert (row["tenant"], row["model"], row["day"]) == ("default", "echo", str(today))
    assert row["jobs"] == {"succeeded": 2, "failed": 1, "canceled": 0, "expired": 0}
    assert (row["device_seconds"], row["bytes_in"], row["pixels"]) == (3.75, 6_000_000, 3 * 1_048_576)
    assert found["total"] == {name: value for name, value in row.items() if name not in ("tenant", "model", "day")}
    assert (await service.http.get("/v1/usage", params={"model": "other"})).json()["rows"] == []
    past = {"from": "2026-01-01", "to": "2026-01-31"}
    assert (await service.http.get("/v1/usage", params=past)).json()["rows"] == []


@pytest.mark.parametrize(
    "query",
    ["from=2026-02-01&to=2026-01-01", "from=2020-01-01&to=2026-01-01", "from=x", "to=0001-01-01", "from=9999-12-31"],
)
async def test_days_that_make_no_report_are_refused(service: Service, query: str) -> None:
    assert_problem(await service.http.get(f"/v1/usage?{query}"), 422, "invalid_request")


async def test_a_tenant_sees_its_own_usage_and_an_administrator_all(valkey: ValkeyProcess, tmp_path: Path) -> None:
    limits = {"b": TenantLimits(max_device_s_per_day=60, max_kept_bytes=10**9)}
    async with serving(valkey.url, tmp_path, access="keys", tenants=limits) as service:
        headers = {}
        for tenant, scopes in (("a", [Scope.READ, Scope.SUBMIT]), ("b", [*Scope])):
            record, text = new_key(
                "of the tests", tenant=tenant, name="k", scopes=scopes, created_s=time.time(), expires_s=None
            )
            put_key(service.objects, record)
            headers[tenant] = {"Authorization": f"Bearer {text}"}
            service.http.headers.update(headers[tenant])
            await end_one(service)

        async def tenants(who: str, query: str = "") -> list[str]:
            answer = await service.http.get(f"/v1/usage{query}", headers=headers[who])
            return [row["tenant"] for row in answer.json()["rows"]]

        assert await tenants("a") == ["a"]
        assert await tenants("b", "?tenant=a") == ["a"]
        assert await tenants("b", "?tenant=*") == ["a", "b"]
        for query in ("?tenant=b", "?tenant=*"):
            refused = await service.http.get(f"/v1/usage{query}", headers=headers["a"])
            assert_problem(refused, 403, "insufficient_scope")
        assert_problem(await service.http.get("/v1/tenants", headers=headers["a"]), 403, "insufficient_scope")
        listed = (await service.http.get("/v1/tenants", headers=headers["b"])).json()["tenants"]
        assert [(each["tenant"], each["device_seconds_today"], each["kept_bytes"]) for each in listed] == [
            ("a", 1.25, 300), ("b", 1.25, 300),
        ]  # fmt: skip
        assert listed[1]["limits"]["device_seconds_per_day"] == 60
        assert [key["scopes"] for key in listed[0]["keys"]] == [["read", "submit"]]
        assert "penstock_" not in str(listed)  # no key's text
        own = (await service.http.get("/v1/key", headers=headers["b"])).json()
        assert own["limits"]["kept_bytes"] == 10**9


async def test_a_tenant_at_a_quota_is_told_which_and_until_when(valkey: ValkeyProcess, tmp_path: Path) -> None:
    limits = {"default": TenantLimits(max_device_s_per_day=1)}
    async with serving(valkey.url, tmp_path, tenants=limits) as service:
        await end_one(service)
        refused = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "hi"}})
        problem = assert_problem(refused, 429, "device_quota_exceeded")
        assert "1.2 device seconds" in problem["detail"]
        left_s = 86_400 - time.time() % 86_400
        assert abs(int(refused.headers["retry-after"]) - left_s) < 10
        async with listening(service) as server, AsyncClient(server.url, patience_s=1) as client:
            with pytest.raises(Exception, match="device seconds"):
                await client.submit("echo", {"text": "hi"})


async def test_no_upload_begins_beyond_the_bytes_that_a_tenant_may_keep(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_tenant_kept_bytes=1000) as service:
        file = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 600}
        assert (await service.http.post("/v1/uploads", json=file, headers={"Idempotency-Key": "1"})).status_code == 201
        assert (await service.http.post("/v1/uploads", json=file, headers={"Idempotency-Key": "1"})).status_code == 201
        assert_problem(await service.http.post("/v1/uploads", json=file), 403, "storage_quota_exceeded")
        sent = {"Idempotency-Key": "sent"}
        small = (await service.http.post("/v1/uploads", json={**file, "size_bytes": 4}, headers=sent)).json()
        assert (await service.http.put(small["url"], content=b"data", headers=small["headers"])).status_code < 300
        await service.jobs.run(note_kept("default", 1000))
        again = await service.http.post("/v1/uploads", json={**file, "size_bytes": 4}, headers=sent)
        assert (again.status_code, again.json()["uploaded"]) == (201, True)  # it is there, so it needs no room
        refused = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "hi"}})
        assert_problem(refused, 403, "storage_quota_exceeded")
        assert "retry-after" not in refused.headers


@pytest.mark.breadth
async def test_the_command_line_shows_a_table_that_fits_80_columns(service: Service) -> None:
    await end_one(service)
    async with listening(service) as server:
        penstock = Shell({"PENSTOCK_URL": server.url})
        shown = (await penstock("usage")).out
        assert shown.splitlines()[0].split() == ["day", "model", "jobs", "failed", "device", "s", "in", "out", "tokens",
                                                 "pixels"]  # fmt: skip
        assert all(figure in shown for figure in ("2.0 MB", "1.05 M", "300 bytes"))
        assert max(map(len, shown.splitlines())) <= 80
        document = (await penstock("usage", "--json", "--tenant", "*")).document()
        assert document["rows"][0]["tenant"] == "default"
        nothing = await penstock("usage", "--from", "2026-01-01", "--to", "2026-01-02")
        assert (nothing.code, nothing.out) == (0, "")
        async with AsyncClient(server.url) as client:
            report = await client.usage(first=day_at(time.time()), model="echo")
        assert report.rows[0].sums == report.total
        assert (report.total.device_s, report.total.jobs["succeeded"]) == (1.25, 1)


async def test_metrics_have_the_sums_of_each_model(service: Service) -> None:
    await end_one(service)
    text = (await service.http.get("/metrics")).text
    assert 'penstock_usage_device_seconds_total{model="echo"} 1.25' in text
    assert 'penstock_usage_pixels_total{model="echo"} 1.048576e+06' in text
