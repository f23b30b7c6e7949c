"""`penstock keys`, and the use of a key by the client and the command line."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from penstock.client import AsyncClient, Client, ClientError
from penstock.config_tables import TenantLimits
from penstock.storage.redis.records import QueueLimits
from tests.support.api_server import listening
from tests.support.command_line import Done, Shell
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess
from tests.support.web_server import Server as Elsewhere
from tests.support.web_server import reply

pytestmark = pytest.mark.breadth


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return a service with keys, and a small limit for the tenant `small`."""
    small = TenantLimits(max_jobs=1, max_body_bytes=100, max_upload_bytes=5)
    async with serving(valkey.url, tmp_path, access="keys", tenants={"small": small}) as service:
        yield service


@pytest.fixture
async def shell(service: Service, tmp_path: Path) -> AsyncIterator[Shell]:
    """Return a shell with the settings of the service, which listens."""
    async with listening(service) as server:
        yield Shell(
            {"PENSTOCK_DATA": str(tmp_path), "PENSTOCK_SECRET": "of the tests", "PENSTOCK_URL": server.url}, tmp_path
        )


def with_key(shell: Shell, key: str) -> Shell:
    return Shell({**shell.variables, "PENSTOCK_API_KEY": key}, shell.folder)


async def created(shell: Shell, *words: str) -> str:
    done = await shell("keys", "create", *words)
    assert done.code == 0, done.err
    assert re.fullmatch(r"penstock_[a-z0-9]{14}_[0-9A-Za-z]{46}\n", done.out)
    return done.out.strip()


async def test_a_key_is_made_used_rotated_and_revoked(shell: Shell, service: Service) -> None:
    assert "send a valid one as `Authorization: Bearer KEY`" in (await shell("list")).err
    old = await created(shell, "--tenant", "acme", "--name", "ci")
    assert (await with_key(shell, old)("list")).code == 0
    new = await created(shell, "--tenant", "acme", "--name", "ci 2", "--expires", "90d")
    assert [(await with_key(shell, key)("list")).code for key in (old, new)] == [0, 0]

    # Two processes: the one that revokes tells the other nothing. It looks again after FRESH_S; this one forgets.
    assert (await shell("keys", "revoke", old)).code == 0
    assert service.app.state.services.keys is not None
    service.app.state.services.keys._cache.clear()
    done = await with_key(shell, old)("list")
    assert (done.code, done.out) == (3, "")
    assert (await with_key(shell, new)("list")).code == 0

    listed = await shell("keys", "list")
    assert old not in listed.out + listed.err
    rows = json.loads((await shell("keys", "list", "--json", "--tenant", "acme")).out)
    assert [(row["name"], row["state"]) for row in rows] == [("ci 2", "active"), ("ci", "revoked")]
    assert rows[0]["expires_at"] > rows[0]["created_at"]
    assert json.loads((await shell("keys", "list", "--json", "--tenant", "nobody")).out) == []


async def test_the_text_stands_alone_on_standard_output(shell: Shell) -> None:
    done = await shell("keys", "create", "--scopes", "admin,read,read", "--name", "ops")
    assert done.out.count("\n") == 1
    assert done.out.strip() not in done.err
    assert "admin, read" in done.err
    told = json.loads((await shell("keys", "create", "--json")).out)
    assert (told["tenant"], told["scopes"], told["expires_at"]) == ("default", ["read", "submit"], None)
    assert told["key"].startswith(f"penstock_{told['id']}_")


async def test_settings_that_ask_for_no_keys_say_which_service_does(tmp_path: Path) -> None:
    done = await Shell({"PENSTOCK_DATA": str(tmp_path)}, tmp_path)("keys", "create")
    assert done.code == 0
    assert "These settings do not require keys: only a service started with `penstock up --keys`" in done.err
    asking = {"PENSTOCK_DATA": str(tmp_path), "PENSTOCK_ACCESS": "keys"}
    assert "do not ask" not in (await Shell(asking, tmp_path)("keys", "create")).err


async def test_a_key_of_another_secret_is_shown_as_what_it_is(shell: Shell) -> None:
    key = await created(Shell({**shell.variables, "PENSTOCK_SECRET": "a former one"}, shell.folder))
    assert (await with_key(shell, key)("list")).code == 3
    assert "of another secret" in (await shell("keys", "list")).out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["create", "--scopes", "everything"], "read, submit, webhooks, monitor, events, admin"),
        (["create", "--scopes", ""], "read, submit, webhooks, monitor, events, admin"),
        (["create", "--expires", "soon"], "90d, 12h, 30m or a date like 2027-01-31"),
        (["create", "--expires", "2020-01-01"], "lies in the past"),
        (["create", "--tenant", "../acme"], "a tenant's name"),
        (["create", "--name", "x" * 101], "at most 100 characters"),
        (["webhook-secret", "--tenant", "../../keys"], "a tenant's name"),
        (["revoke", "nothing-like-a-key"], "there is no key like that"),
        (["revoke", "k3v09x1m2qwe4r"], "there is no key k3v09x1m2qwe4r"),
    ],
)
async def test_what_is_wrong_is_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = await Shell({"PENSTOCK_DATA": str(tmp_path)}, tmp_path)("keys", *words)
    assert (done.code, done.out) == (2, "")
    assert sentence in " ".join(done.err.replace("│", " ").split())
    assert "Traceback" not in done.err


async def test_a_webhook_secret_that_was_made_now_is_told_so(shell: Shell) -> None:
    await created(shell, "--tenant", "acme")
    first, again = [await shell("keys", "webhook-secret", "--tenant", "acme") for _ in range(2)]
    assert (first.out, again.err) == (again.out, "")
    assert first.out.startswith("whsec_")
    assert first.err == "the secret is new: tenant acme had none\n"
    typo = await shell("keys", "webhook-secret", "--tenant", "amce")
    assert "tenant amce had none" in typo.err
    assert "tenant amce has no API key" in typo.err


async def test_a_secret_is_not_made_where_the_apis_have_another(tmp_path: Path) -> None:
    there = (tmp_path / "elsewhere").as_uri()
    done = await Shell({"PENSTOCK_DATA": str(tmp_path), "PENSTOCK_OBJECT_STORE": there}, tmp_path)("keys", "create")
    assert (done.code, "PENSTOCK_SECRET" in done.err) == (2, True)
    assert not (tmp_path / "secret").exists()


async def test_the_wrong_scope_is_said_with_the_right_one(shell: Shell) -> None:
    key = await created(shell, "--scopes", "read")
    done = await with_key(shell, key)("queues", "pause", "default")
    assert done.code == 3
    assert "the route needs the scope admin; the key has read" in done.err


async def test_doctor_says_how_one_gets_in(shell: Shell) -> None:
    async def access(with_this: Shell) -> dict[str, object]:
        done: Done = await with_this("doctor", "--json")
        (found,) = [finding for finding in json.loads(done.out) if finding["name"] == "access"]
        return dict(found)

    assert (await access(shell))["ok"] is False
    assert "penstock keys create" in str((await access(shell))["remedy"])
    narrow = await access(with_key(shell, await created(shell)))
    assert "the route needs the scope monitor" in str(narrow["detail"])
    wide = await access(with_key(shell, await created(shell, "--scopes", "read,monitor")))
    assert (wide["ok"], wide["detail"]) == (True, "by API keys")


async def test_the_client_sends_files_and_fetches_results_with_a_key(
    shell: Shell, service: Service, tmp_path: Path
) -> None:
    key = await created(shell, "--tenant", "acme")
    (tmp_path / "scene.tif").write_bytes(b"x" * 500)
    async with AsyncClient(shell.variables["PENSTOCK_URL"], api_key=f"{key}\n", patience_s=1) as client:
        transport = httpx2.ASGITransport(service.app)
        async with AsyncClient(service.settings.base_url, api_key=key, patience_s=1, transport=transport) as inside:
            job = await inside.submit("echo", {"text": "hi"}, files={"scene": tmp_path / "scene.tif"})
        claim = await service.claim()
        assert claim.key.tenant == "acme"
        artifact = service.store_artifact(claim, "map.tif", b"a map", "image/tiff")
        await service.succeed(claim, artifacts=(artifact,))
        job = await client.wait(job.id, on_event=lambda _: None)
        await client.download(job, tmp_path / "out")
    assert (tmp_path / "out" / "map.tif").read_bytes() == b"a map"


async def test_a_key_never_leaves_for_another_host(tmp_path: Path) -> None:
    (tmp_path / "a.tif").write_bytes(b"12345")
    with Elsewhere(reply(200)) as store, Elsewhere(b"") as api:
        place = {"id": "1", "media": "media://1/a.tif", "method": "PUT", "headers": {}}
        place["url"] = f"http://127.0.0.1:{store.port}/bucket/a.tif"
        api._answers[:] = [reply(200, json.dumps(place).encode())]
        with Client(f"http://127.0.0.1:{api.port}", api_key="penstock_k", patience_s=0) as client:
            client.upload(tmp_path / "a.tif")
    assert b"authorization: bearer penstock_k" in api.requests[0].lower()
    assert b"PUT /bucket/a.tif" in store.requests[0]
    assert b"authorization" not in store.requests[0].lower()


def test_a_key_with_a_line_break_inside_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ClientError, match="PENSTOCK_API_KEY"):
        Client(api_key="penstock_a\r\nX-Evil: 1")


async def test_a_redirect_to_an_object_store_takes_no_key_along(tmp_path: Path) -> None:
    job = {"id": "1", "model": "m", "status": "succeeded", "created_at": "2026-01-01T00:00:00Z"}
    digest = "b7c3c1f4c5f1f7b1" * 4
    job["artifacts"] = [{"name": "map.tif", "size_bytes": 5, "sha256": digest}]  # type: ignore[assignment]
    with Elsewhere(reply(200, b"a map")) as store, Elsewhere(b"") as api:
        link = reply(302, Location=f"http://127.0.0.1:{store.port}/bucket/map.tif")
        api._answers[:] = [reply(200, json.dumps(job).encode()), link]
        here = f"http://127.0.0.1:{api.port}"
        with (
            Client(here, api_key="penstock_k", patience_s=0) as client,
            pytest.raises(ClientError, match="did not arrive"),
        ):
            client.download(client.job("1"), tmp_path / "out")
    assert b"authorization: bearer penstock_k" in api.requests[1].lower()
    assert b"GET /bucket/map.tif" in store.requests[0]
    assert b"authorization" not in store.requests[0].lower()


async def test_each_tenants_limits_are_its_own(shell: Shell, service: Service) -> None:
    small = {"Authorization": f"Bearer {await created(shell, '--tenant', 'small')}"}
    other = {"Authorization": f"Bearer {await created(shell, '--tenant', 'other')}"}
    body = {"model": "echo", "input": {"text": "hi"}}
    http = service.http

    long = {"model": "echo", "input": {"text": "x" * 200}}
    assert_problem(await http.post("/v1/jobs", json=long, headers=small), 413, "payload_too_large")
    assert (await http.post("/v1/jobs", json=body, headers=small)).status_code == 202
    refused = await http.post("/v1/jobs", json=body, headers=small)
    assert_problem(refused, 429, "too_many_jobs")
    assert int(refused.headers["retry-after"]) >= 1
    assert [(await http.post("/v1/jobs", json=body, headers=other)).status_code for _ in range(3)] == [202] * 3

    assert (await http.post("/v1/jobs", json=long, headers=other)).status_code == 202
    file = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 6}
    assert_problem(await http.post("/v1/uploads", json=file, headers=small), 413, "payload_too_large")
    assert (await http.post("/v1/uploads", json=file, headers=other)).status_code == 201
    assert QueueLimits.of(service.settings).jobs_of("small") == 1


async def test_any_name_of_the_machine_leads_to_a_service_with_keys(service: Service) -> None:
    answer = await service.http.get("/v1/jobs", headers={"Host": "10.1.2.3:8080"})
    assert_problem(answer, 401, "unauthorized")
    assert (await service.http.get("/livez", headers={"Host": "10.1.2.3:8080"})).status_code == 200


async def test_an_open_service_says_that_keys_are_not_asked_for(tmp_path: Path) -> None:
    done = await Shell({"PENSTOCK_DATA": str(tmp_path)}, tmp_path)("keys", "create")
    assert "do not require keys" in done.err
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
