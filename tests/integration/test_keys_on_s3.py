"""API keys in a real S3 store: made, used, listed, revoked and expired as on a folder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from penstock.api.keyring import FRESH_S
from penstock.storage.journal.api_keys import list_keys
from tests.support.api_server import listening
from tests.support.ceph import Ceph
from tests.support.command_line import Shell
from tests.support.polling import wait_for
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


async def created(shell: Shell, *words: str) -> str:
    done = await shell("keys", "create", *words)
    assert done.code == 0, done.err
    return done.out.strip()


async def status(service: Service, key: str, tenant: str | None = None) -> int:
    """Return what a list of jobs is answered with; where it is, it is that tenant's."""
    answer = await service.http.get("/v1/jobs", headers={"Authorization": f"Bearer {key}"})
    if answer.status_code == 200:
        assert {job["tenant"] for job in answer.json()["jobs"]} <= {tenant}
    return answer.status_code


@pytest.mark.breadth
async def test_a_key_is_made_used_listed_and_revoked(ceph: Ceph, valkey: ValkeyProcess, tmp_path: Path) -> None:
    assert ceph.s3.secret_access_key is not None
    store = f"s3://{ceph.bucket()}/some/prefix"
    variables = {
        "PENSTOCK_SECRET": "of the tests", "PENSTOCK_OBJECT_STORE": store, "PENSTOCK_DATA": str(tmp_path),
        "PENSTOCK_S3__ENDPOINT_URL": str(ceph.s3.endpoint_url),
        "PENSTOCK_S3__ACCESS_KEY_ID": str(ceph.s3.access_key_id),
        "PENSTOCK_S3__SECRET_ACCESS_KEY": ceph.s3.secret_access_key.get_secret_value(),
    }  # fmt: skip
    async with serving(valkey.url, tmp_path, access="keys", object_store=store, s3=ceph.s3) as service:
        async with listening(service) as server:
            shell = Shell(variables | {"PENSTOCK_URL": server.url}, tmp_path)
            old = await created(shell, "--tenant", "acme", "--name", "old")
            new = await created(shell, "--tenant", "acme", "--name", "new", "--expires", "1h")
            for key in (old, new):
                submitted = await Shell({**shell.variables, "PENSTOCK_API_KEY": key})("submit", "echo", "hi", "--json")
                assert submitted.document()["tenant"] == "acme", submitted.err
            forged = old[:-1] + ("a" if old[-1] != "a" else "b")
            assert await status(service, forged) == 401

            assert (await shell("keys", "revoke", old)).code == 0
            rows = json.loads((await shell("keys", "list", "--json", "--tenant", "acme")).out)
            assert {row["name"]: row["state"] for row in rows} == {"old": "revoked", "new": "active"}
            loop = asyncio.get_running_loop()

            def refused() -> bool:  # nobody tells the API: it looks again by itself
                return asyncio.run_coroutine_threadsafe(status(service, old, "acme"), loop).result(60) == 401

            await asyncio.to_thread(wait_for, refused, "a revoked key is still taken", timeout_s=FRESH_S + 60)
            assert await status(service, new, "acme") == 200
        answer = await service.http.get("/v1/jobs", headers={"Authorization": f"Bearer {old}"})
        assert_problem(answer, 401, "unauthorized")
        # The records in the bucket are not valid keys.
        for record in list_keys(service.objects):
            kept = service.objects.get_bytes(f"keys/{record.id}.json", limit_bytes=10_000).decode()
            assert record.digest in kept
            assert not any(key.rpartition("_")[2][:30] in kept for key in (old, new))
