"""A released version and the working tree beside each other, on one Redis and one object store, under load."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from io import BytesIO
from lzma import decompress
from pathlib import Path
from typing import Any, Self

import httpx2
import pytest
from redis import Redis

from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.storage.redis.records import JobStore
from tests.chaos.arena import Arena
from tests.chaos.checker import check
from tests.chaos.clients import Client, jobs, submit_all, watch_until_over
from tests.chaos.history import History, Wanted
from tests.chaos.leftovers import collect
from tests.chaos.processes import ROOT, Fleet, Kept, free_port
from tests.chaos.proxy import Proxy
from tests.chaos.receiver import Receiver
from tests.releases import wheels
from tests.support.valkey import ValkeyProcess, start_valkey

pytestmark = pytest.mark.breadth

OLD, NEW = "old", "new"
#: Seconds after which a run that does not end has failed.
PATIENCE_S = 150.0
#: Answers of an API may take longer here than promised, since up to six processes share two cores with the tests.
ANSWER_S = 15.0
#: Routes that people and programs read while a service is upgraded.
SHOWN = ("/metrics", "/v1/workers", "/v1/queues", "/v1/models", "/v1/jobs")


class Mixed(Fleet):
    """APIs, workers and keepers of two releases: `roles` has the releases of each role."""

    def __init__(self, folder: Path, site: Path, roles: Mapping[str, str], **settings: Any) -> None:
        super().__init__(folder, workers=0, failpoints={}, **settings)
        self._paths = {OLD: f"{site}:{ROOT}", NEW: f"{ROOT / 'src'}:{ROOT}"}
        self._roles = roles
        self.ports: dict[str, int] = {}

    @property
    def urls(self) -> list[str]:
        """The addresses of all APIs."""
        return [f"http://127.0.0.1:{port}" for port in self.ports.values()]

    def __enter__(self) -> Self:
        for name, release in self._roles.items():
            role = name.rstrip("0123456789")
            if role == "api":
                self.ports[name] = self.port if not self.ports else free_port()
                app = ["-m", "uvicorn", "penstock.api.app:from_settings", "--factory", "--host", "127.0.0.1"]
                words = [*app, "--port", str(self.ports[name]), "--no-access-log", "--log-level", "warning"]
            else:
                words = ["-m", f"tests.releases.{role}"]
            environment = self._environment | {"PYTHONPATH": self._paths[release]}
            self.kept.append(Kept(name, [sys.executable, *words], environment, self.folder / f"{name}.log"))
        for port in self.ports.values():
            self.port = port
            self.wait_until_ready()
        return self


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the latest kept release, installed."""
    return wheels.install(wheels.kept()[-1], tmp_path_factory.mktemp("release") / "old")


@pytest.mark.parametrize("release", wheels.kept(), ids=wheels.release_of)
def test_a_kept_release_is_small_and_names_no_machine(release: Path) -> None:
    data = release.read_bytes()
    assert len(data) <= wheels.MAX_BYTES
    with zipfile.ZipFile(BytesIO(decompress(data))) as archive:
        texts = {name: archive.read(name) for name in archive.namelist()}
    homes = [str(Path.home()).encode(), str(ROOT).encode(), str(ROOT.parent).encode(), os.sep.encode() + b"home/"]
    assert [name for name, text in texts.items() if any(home in text for home in homes if len(home) > 5)] == []


def test_the_kept_release_is_the_one_that_runs(site: Path) -> None:
    command = [sys.executable, "-c", "import penstock, penstock.api.app as app; print(penstock.__file__, app.__file__)"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": f"{site}:{ROOT}"}, check=True, capture_output=True, text=True
    )
    assert [path.startswith(str(site)) for path in done.stdout.split()] == [True, True]


@pytest.mark.parametrize(("writer", "reader"), [(OLD, NEW), (NEW, OLD)])
def test_all_readers_of_a_release_read_all_records_of_the_other(
    tmp_path: Path, site: Path, writer: str, reader: str
) -> None:
    def done_by(release: str, deed: str) -> str:
        path = {OLD: f"{site}:{ROOT}", NEW: f"{ROOT / 'src'}:{ROOT}"}[release]
        command = [sys.executable, "-m", "tests.releases.records", deed]
        return subprocess.run(
            command, env={**environment, "PYTHONPATH": path}, check=True, capture_output=True, text=True
        ).stdout

    with _valkey(tmp_path) as valkey:
        names = {"DATA": str(tmp_path), "REDIS_URL": valkey.url, "SECRET": "s", "ACCESS": "open"}
        environment = {**os.environ, **{f"PENSTOCK_{name}": value for name, value in names.items()}}
        done_by(writer, "write")
        failed = json.loads(done_by(reader, "read").splitlines()[-1])
    assert failed == {}, json.dumps(failed, indent=2)


@pytest.mark.parametrize(
    ("roles", "loss"),
    [
        ({"api": NEW, "worker1": OLD, "keeper1": OLD}, False),
        ({"api": OLD, "worker1": NEW, "keeper1": OLD}, False),
        ({"api": OLD, "worker1": OLD, "keeper1": NEW}, False),
        ({"api": OLD, "worker1": NEW, "keeper1": NEW}, False),
        ({"api": NEW, "worker1": OLD, "keeper1": NEW}, False),
        ({"api": NEW, "worker1": NEW, "keeper1": OLD}, True),
        (
            {"api1": OLD, "api2": NEW, "worker1": OLD, "worker2": NEW, "keeper1": OLD, "keeper2": NEW},
            True,
        ),
    ],
    ids=["api-first", "worker-first", "keeper-first", "old-api", "old-worker", "old-keeper", "both-of-each"],
)
def test_no_job_is_lost_doubled_or_changed_between_two_releases(
    tmp_path: Path, site: Path, roles: Mapping[str, str], loss: bool, record_property: Any
) -> None:
    begun = time.monotonic()
    with ExitStack() as stack:
        valkey = stack.enter_context(_valkey(tmp_path))
        receiver = stack.enter_context(Receiver())
        fleet = Mixed(
            tmp_path / "fleet", site, roles, redis_url=valkey.url, allowed_hosts=(receiver.pair,), lease_s=3.0,
            poll_s=1.0, drain_s=0.3, slots=2, max_crashes=50, max_tenant_jobs=10_000,
            public_url="http://127.0.0.1:1",
        )  # fmt: skip
        stack.enter_context(fleet)
        objects = open_store(fleet.settings.store_url, fleet.settings)
        redis, s3 = stack.enter_context(Proxy(valkey.port)), stack.enter_context(Proxy(1))
        arena = Arena(fleet, valkey, redis, s3, objects, receiver, History(), random.Random(1), PATIENCE_S)
        _run(arena, fleet, loss=loss)
        left = collect(fleet.settings, objects, valkey.url)
        told = [replace(hook, body=_without_output(hook.body)) for hook in receiver.got]
        violations = check(arena.history, told, left, patience_s=ANSWER_S, all_count=False)
        assert violations == [], "\n".join(violations[:20])
        deaths = len(arena.deaths())
        crashed = {log.name: log.read_text() for log in fleet.folder.glob("*.log")}
    assert [name for name, text in crashed.items() if "duty.failed" in text or "attempt.crashed" in text] == []
    figures = f"{len(arena.history.wanted)} jobs, {deaths} deaths, {len(receiver.got)} webhooks"
    record_property("figures", f"{'-'.join(roles.values())}: {figures} in {time.monotonic() - begun:.0f} s")


def _without_output(body: bytes) -> bytes:
    """Return a webhook's body without the answer, which keepers of release 0.1.0 do not tell."""
    event = json.loads(body)
    for name in ("output", "output_bytes"):
        event["data"].pop(name, None)
    event["data"].get("links", {}).pop("output", None)
    return json.dumps(event, sort_keys=True).encode()


def _run(arena: Arena, fleet: Mixed, *, loss: bool) -> None:
    """Submit jobs through every API, kill each worker once, maybe empty Redis, and watch until all is over."""
    # c7af957 may show a job as queued again that ended, if Redis is emptied during a comparison that began before.
    _wait_for_comparison(arena)
    until = time.monotonic() + PATIENCE_S
    history, clients = arena.history, []
    for url in fleet.urls:
        wanted = [*jobs(60, arena.receiver, webhook_every=3, takes_s=0.1), *_long_ones(arena.receiver)]
        clients += submit_all(url, history, wanted, threads=2, until=until, forgotten_model=loss)
    half = len(history.wanted) // 2
    arena.until(lambda: len(history.accepted) >= half, within_s=60)
    canceling = Client(fleet.urls[-1], history)
    for job in [job for job in history.wanted.values() if "canceled" in job.ends]:
        arena.until(lambda job=job: job.id in history.accepted, within_s=60)
        canceling.cancel(job.id, until=until)
    canceling.close()
    for worker in fleet.workers:
        worker.signal(signal.SIGKILL)
    if loss:
        with Redis.from_url(arena.valkey.url) as client:
            client.flushall()
    for thread in clients:
        thread.join()

    def told() -> bool:
        arena.hurry_webhooks(waiting_over_s=20)
        hooked = {job.id for job in history.wanted.values() if job.webhook is not None}
        return len({hook.id for hook in list(arena.receiver.got) if hook.answered == 200}) >= len(hooked)

    for url in fleet.urls:
        assert watch_until_over(url, history, until=until, over=told), "some jobs were never over"
    _wait_for_comparison(arena)
    for url in fleet.urls:
        arena.until(lambda url=url: httpx2.get(f"{url}/v1/workers").json()["workers"], within_s=60)
        shown = {path: httpx2.get(f"{url}{path}").status_code for path in SHOWN}
        assert set(shown.values()) == {200}, (url, shown)
    # c7af957 has no index of names: beside old workers and keepers alone, the first sweep of today's keeper empties it.
    with closing(JobStore.open(fleet.settings.redis_address)) as store:
        store.run(records.sweep())


def _wait_for_comparison(arena: Arena) -> None:
    """Return when a keeper has compared Redis with the object store since it was emptied or begun."""
    with Redis.from_url(arena.valkey.url) as client:
        arena.until(lambda: client.exists("penstock:alive"), within_s=60)


def _long_ones(receiver: Receiver) -> list[Wanted]:
    """Return jobs that are canceled, unless they end before."""
    return [
        Wanted(
            str(uuid.uuid4()), {"text": f"c{n}", "takes_s": 3.0}, ends=("canceled", "succeeded"), webhook=receiver.url
        )
        for n in range(4)
    ]


@contextmanager
def _valkey(folder: Path) -> Iterator[ValkeyProcess]:
    server = start_valkey(folder / "valkey")
    try:
        yield server
    finally:
        server.stop()
