"""A tenant's data, out and away: the export has all of it, and after an erasure no store names the tenant."""

from __future__ import annotations

import hashlib
import json
import tarfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.api_keys import Scope, new_key
from penstock.config_tables import DropRule
from penstock.errors import ConfigError
from penstock.jobs import State, Usage
from penstock.storage.journal.api_keys import list_keys, put_key
from penstock.storage.redis.records import Command, JobStore, Outcome
from penstock.workers.keeper.tenant_erasure import Erasure, erase_tenant, what_is_left
from penstock.workers.keeper.tenant_export import export_tenant
from penstock.workers.result_cache import remember
from tests.support.command_line import Shell
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess

T = TypeVar("T")
SECRET = "of the tests"
#: Neither is the beginning of the other, and nothing else is named so.
ERASED, KEPT = "acme-erased", "acme-kept"


@pytest.fixture
async def both(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return a service with two tenants, each with one of everything."""
    async with serving(valkey.url, tmp_path / "data", access="keys") as service:
        for tenant in (ERASED, KEPT):
            await end_one(service, tenant)
        for tenant in (ERASED, KEPT):
            await fill(service, tenant)
        yield service


def log_in(service: Service, tenant: str) -> None:
    record, text = new_key(SECRET, tenant=tenant, name="k", scopes=[*Scope], created_s=time.time(), expires_s=None)
    put_key(service.objects, record)
    service.http.headers["Authorization"] = f"Bearer {text}"


async def end_one(service: Service, tenant: str) -> None:
    log_in(service, tenant)
    endpoint = {"url": "http://files.test:80/hook", "events": ["job.succeeded", "job.queued"]}
    assert (await service.http.post("/v1/webhook-endpoints", json=endpoint)).status_code == 201
    await service.submit(webhook={"url": "http://files.test:80/own"}, metadata={"who": tenant})
    held = await service.claim()
    artifact = service.store_artifact(held, "a.txt", tenant.encode(), "text/plain")
    await service.end(held, Outcome(State.SUCCEEDED, text="hi", artifacts=(artifact,), usage=Usage(1.5, bytes_out=9)))
    await service.jobs.run(remember(held.key, "digest", kept_s=60))


async def fill(service: Service, tenant: str) -> None:
    log_in(service, tenant)
    await service.submit()
    await service.submit()  # stays in the queue
    batch = {"model": "echo", "requests": [{"input": {"text": str(n)}} for n in range(3)]}
    answer = await service.http.post("/v1/batches", json=batch)
    assert answer.status_code == 202, answer.text
    file = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 5}
    up = (await service.http.post("/v1/uploads", json=file)).json()
    service.objects.put_bytes(f"tenants/{tenant}/uploads/{up['id']}/a.tif", b"12345", content_type="image/tiff")
    parts = await service.http.post("/v1/uploads", json={**file, "multipart": True})
    assert parts.status_code == 201, parts.text


def everything(store: JobStore, service: Service) -> list[str]:
    """Return all names and values of Redis and all objects' keys, read without any of the code under test."""
    found = []
    client = store.client
    for key in client.scan_iter(count=1000):
        kind = client.type(key)
        read: dict[str, Any] = {
            "hash": lambda k: client.hgetall(k).items(), "string": lambda k: [client.get(k)],
            "set": client.smembers, "list": lambda k: client.lrange(k, 0, -1),
            "zset": lambda k: client.zrange(k, 0, -1), "stream": client.xrange,
        }  # fmt: skip
        found += [f"{key} {value}" for value in read[str(kind)](key)]
    found += [info.key for info in service.objects.list("")]
    root = Path(service.settings.data) / "objects"
    found += [str(path.relative_to(root)) for path in root.rglob("*")]
    return found + [path.read_text() for path in root.rglob("key") if path.is_file()]  # of uploads in parts


async def test_after_an_erasure_nothing_names_the_tenant_and_the_other_is_whole(both: Service, store: JobStore) -> None:
    running = [claim.key for claim in await both.claims()]
    assert {key.tenant for key in running} == {ERASED, KEPT}
    await both.jobs.client.zadd("penstock:leases", {str(key): 0 for key in running if key.tenant == ERASED})
    before = everything(store, both)
    assert sum(ERASED in line for line in before) > 20
    kept = sorted(line for line in before if KEPT in line)
    done = erase(store, both)
    assert (done.left, done.api_keys, done.batches) == ([], 2, 1)
    assert done.jobs == 3
    assert done.canceled_jobs == 2
    after = everything(store, both)
    assert [line for line in after if ERASED in line] == []
    # The reply of the claim above has jobs of both tenants; its own slot alone reads it, and it expires with the lease.
    kept = [line for line in kept if not line.startswith("penstock:claim:")]
    assert {line.partition(" ")[0] for line in kept} <= {line.partition(" ")[0] for line in after if KEPT in line}
    assert [record.tenant for record in list_keys(both.objects)] == [KEPT] * 2
    assert erase(store, both) == Erasure(ERASED)  # a second time there is nothing


def erase(store: JobStore, service: Service) -> Erasure:
    return erase_tenant(store, service.objects, service.settings, ERASED, key_s=0)


async def test_what_is_left_is_found_in_every_index(both: Service, store: JobStore) -> None:
    erase(store, both)
    client = store.client
    client.zadd("penstock:outbox", {f"{ERASED}/x": 1, f"{KEPT}/x": 1})
    client.zadd("penstock:outbox:tenants", {ERASED: 1})
    for index in ("lanes", "names"):
        client.zadd(f"penstock:queue:default:{index}", {f"echo/{ERASED}": 1})
    client.sadd("penstock:queue:default:running", f"{ERASED}/y")
    client.set(f"penstock:dry:{ERASED}/y", "w")
    client.set(
        "penstock:claim:s:n",
        json.dumps([{"submission": json.dumps({"key": {"tenant": ERASED}}, separators=(",", ":"))}]),
    )
    both.objects.put_bytes(f"tenants/{ERASED}/jobs/a/x", b"", content_type="text/plain")
    assert what_is_left(store, both.objects, ERASED) == [
        f"object tenants/{ERASED}/jobs/a/x",
        "Redis penstock:claim:s:n",
        f"Redis penstock:dry:{ERASED}/y",
        f"Redis penstock:outbox: {ERASED}/x",
        f"Redis penstock:outbox:tenants: {ERASED}",
        f"Redis penstock:queue:default:lanes: echo/{ERASED}",
        f"Redis penstock:queue:default:names: echo/{ERASED}",
        f"Redis penstock:queue:default:running: {ERASED}/y",
    ]
    assert erase(store, both).left == []
    assert client.zscore("penstock:outbox", f"{KEPT}/x") == 1


class SlowToCancel:
    """A job store whose cancels take longer than its jobs are waited for."""

    def __init__(self, store: JobStore, takes_s: float) -> None:
        self.store, self.takes_s = store, takes_s

    def run(self, command: Command[T]) -> T:
        if command.script == "cancel":
            threading.Event().wait(self.takes_s)
        return self.store.run(command)


@pytest.mark.breadth
async def test_the_wait_for_jobs_that_run_begins_after_the_cancels(both: Service, store: JobStore) -> None:
    running = [claim.key for claim in await both.claims() if claim.key.tenant == ERASED]
    store.client.zadd("penstock:leases", {str(key): 0 for key in running})  # their ends come with the next sweep
    slow = SlowToCancel(store, 0.3)
    assert erase_tenant(slow, both.objects, both.settings, ERASED, key_s=0, jobs_s=0.3).left == []


async def test_unfinished_uploads_in_parts_are_found(both: Service, store: JobStore) -> None:
    erase(store, both)
    both.objects.begin_multipart(f"tenants/{ERASED}/uploads/u/a.tif", content_type="image/tiff")
    assert what_is_left(store, both.objects, ERASED) == ["1 unfinished uploads in parts, which are dropped now"]
    assert what_is_left(store, both.objects, ERASED) == []


async def test_a_tenant_with_a_drop_rule_is_not_erased(both: Service, store: JobStore) -> None:
    rule = DropRule(name="in", bucket="file:///tmp/in", model="echo", output_prefix="out/", prefix="in/", tenant=ERASED)
    settings = both.settings.model_copy(update={"drops": (rule,)})
    with pytest.raises(ConfigError, match="drop rules in "):
        erase_tenant(store, both.objects, settings, ERASED, key_s=0)


@pytest.mark.parametrize("name", ["out", "out.tar", "out.tar.gz"])
async def test_an_export_has_all_of_a_tenant_and_a_manifest_that_fits(
    both: Service, store: JobStore, tmp_path: Path, name: str
) -> None:
    assert {claim.key.tenant for claim in await both.claims()} == {ERASED, KEPT}  # one reply has jobs of both
    done = export_tenant(store, both.objects, ERASED, tmp_path / name)
    folder = tmp_path / name
    if name != "out":
        with tarfile.open(folder) as tar:
            tar.extractall(tmp_path / "extracted", filter="data")
        folder = tmp_path / "extracted" / ERASED
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    manifest = json.loads(files.pop("manifest.json").read_text())
    assert {row["path"] for row in manifest["files"]} == files.keys()
    for row in manifest["files"]:
        data = files[row["path"]].read_bytes()
        assert (row["bytes"], row["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    keys = [info.key for info in both.objects.list(f"tenants/{ERASED}/")]
    assert done.objects == len(keys) > 5
    assert {f"objects/{key.removeprefix(f'tenants/{ERASED}/')}" for key in keys} <= files.keys()
    rows = [json.loads(line) for line in files["redis.jsonl"].read_text().splitlines()]
    assert {row["key"] for row in rows} == {str(key) for key in store.client.scan_iter(f"penstock:tenant:{ERASED}:*")}
    assert done.redis_keys == len(rows)
    assert any(":usage:" in row["key"] and "echo succeeded" in row["value"] for row in rows)
    key = json.loads(files["keys.json"].read_text())[0]
    assert (key["tenant"], "digest" in key) == (ERASED, False)
    assert KEPT not in "".join(path.read_text() for path in files.values())
    with pytest.raises(ConfigError, match="exists"):
        export_tenant(store, both.objects, ERASED, tmp_path / name)


@pytest.mark.parametrize("name", ["new/out", "new/out.tar.gz"])
async def test_only_its_owner_may_read_an_export(both: Service, store: JobStore, tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    export_tenant(store, both.objects, ERASED, target)
    modes = {".": target.stat().st_mode, **{str(path): path.stat().st_mode for path in target.rglob("*")}}
    if target.is_file():
        with tarfile.open(target) as tar:
            modes |= {member.name: member.mode for member in tar.getmembers()}
    assert [name for name, mode in modes.items() if mode & 0o077] == []


@pytest.mark.parametrize("name", ["out", "out.tar.gz"])
async def test_an_export_that_cannot_be_written_says_why(
    both: Service, store: JobStore, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"cannot write .*{name}: "):
        export_tenant(store, both.objects, ERASED, tmp_path / "file" / name)


@pytest.mark.breadth
async def test_an_export_of_a_tenant_of_which_nothing_is_kept_says_so(both: Service, tmp_path: Path) -> None:
    penstock = Shell({"PENSTOCK_DATA": str(both.settings.data), "PENSTOCK_REDIS_URL": both.settings.redis_address})
    done = await penstock("tenants", "export", "nobody", "--to", str(tmp_path / "out"))
    assert done.code == 0
    assert "nothing is kept of a tenant nobody" in done.err


async def test_an_erasure_needs_a_confirmation(both: Service) -> None:
    penstock = Shell({"PENSTOCK_DATA": str(both.settings.data), "PENSTOCK_REDIS_URL": both.settings.redis_address})
    unconfirmed = await penstock("tenants", "erase", ERASED)
    assert (unconfirmed.code, unconfirmed.out) == (2, "")
    assert "--yes" in unconfirmed.err
    done = await penstock("tenants", "erase", "nobody", "--yes", "--json")
    assert done.document()["left"] == []
    assert (await penstock("tenants", "erase", "No Name", "--yes")).code == 2
