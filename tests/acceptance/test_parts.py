"""Scenes that several worker processes share: killed, canceled, without Redis; the bytes are those of one worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.config import Settings
from penstock.errors import PenstockError
from penstock.intake.media import upload_key
from penstock.jobs import Job, JobKey, State, Status, Submission
from penstock.storage.journal import journal
from penstock.storage.journal.environments import Environments
from penstock.storage.journal.journal import Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import queues, records
from penstock.workers.keeper.recovery import recover
from tests.support.geo.scenes import pattern, write_scene
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess, start_valkey

ROOT = Path(__file__).parents[2]
LIMITS = records.QueueLimits(max_queued=1000, max_tenant_jobs=1000, retention_s=3600, max_crashes=3, durable=True)
#: Strips of the scene, and tiles of a strip.
STRIPS, TILES = 20, 4
SLOW = """
[models.slow]
title = "A network that takes its time"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"
device = "cpu"
warm_up = false

[models.slow.options]
halo_px = 8
stride_px = 8
tile_px = 256
step_s = 0.2
bands = [{ name = "one", mean = 100.0, std = 50.0 }, { name = "other", mean = 120.0, std = 70.0 }]
classes = [{ id = 0, name = "a", colour = "#000000" }, { id = 1, name = "b", colour = "#ffffff" }]
default_radiometry = [{ dtypes = ["uint8"], scale = 1.0 }]
"""

pytestmark = [pytest.mark.slow, pytest.mark.breadth]


@dataclass(frozen=True)
class Shop:
    """A job store, an object store with a scene, and workers as processes."""

    store: records.JobStore
    objects: ObjectStore
    environment: dict[str, str]
    #: Size of the scene's file.
    scene_bytes: int

    @contextmanager
    def workers(self, count: int, **settings: str) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Run worker processes, once all of them have reported."""
        command = [sys.executable, "-m", "penstock.cli", "worker"]
        processes = [
            subprocess.Popen(command, env=self.environment | settings, cwd=ROOT, stderr=subprocess.DEVNULL)
            for _ in range(count)
        ]
        try:
            wait_for(lambda: self.living() == count, "the workers do not report", timeout_s=60)
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait(30)
            wait_for(lambda: self.living() == 0, "killed workers count as alive")

    def living(self) -> int:
        return self.store.run(queues.queue_stats("default")).workers

    def submit(self, scene: str = "scene", **more: Any) -> JobKey:
        key = JobKey("default", str(uuid.uuid4()))
        wanted = {"scene": f"media://up/{scene}.tif", **more}
        self.journal.run(journal.submit(Submission(key, "slow", "default", wanted, "f"), LIMITS))
        return key

    @property
    def journal(self) -> Journal:
        return Journal(self.store, self.objects)

    def read(self, key: JobKey) -> Job:
        return self.store.run(records.read(key))

    def sweep(self) -> None:
        self.journal.run(journal.sweep())

    def end(self, key: JobKey) -> Job:
        """Return the ended job; the test is the keeper meanwhile."""

        def over() -> bool:
            self.sweep()
            return self.read(key).status.terminal

        wait_for(over, f"{key} does not end", timeout_s=90)
        return self.read(key)

    def saved(self, key: JobKey) -> list[str]:
        return [info.key for info in self.objects.list(key.checkpoints)]

    def strips(self, key: JobKey) -> list[str]:
        return [name for name in self.saved(key) if "/strip-" in name]

    def ended_parts(self, key: JobKey) -> list[str]:
        events = self.store.run(records.events(key))
        return [event.data["status"] for event in events if event.type == "job.part_ended"]


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    server = start_valkey(tmp_path_factory.mktemp("valkey"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def opened(valkey: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Return the module's shop: in another one, the scene has another etag, which the statistics name."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "slow.toml").write_text(SLOW)
    environment = {
        **os.environ, "PENSTOCK_REDIS_URL": valkey.url, "PENSTOCK_DATA": str(folder), "PENSTOCK_SECRET": "s",
        "PENSTOCK_MODELS": f'["{folder / "slow.toml"}"]', "PENSTOCK_POLL_S": "1", "PENSTOCK_SLOTS": "1",
        "PENSTOCK_LEASE_S": "3", "PENSTOCK_SCENE_PART_TILES": "8",
        "PENSTOCK_SCENE_SHARING": "always", "PENSTOCK_SCENE_PARTS": "3",
    }  # fmt: skip
    settings = Settings(data=folder, redis_url=valkey.url)
    with closing(records.JobStore.open(valkey.url)) as store:
        objects = open_store(settings.store_url, settings)
        scene = write_scene(folder / "scene.tif", np.concatenate([pattern(5120, 1024), pattern(1024, 5120).mT]))
        dates = np.concatenate([pattern(1200, 1024), pattern(1024, 1200).mT])
        before = write_scene(folder / "before.tif", dates[::-1])
        after = write_scene(folder / "after.tif", dates)
        for path in (scene, before, after):
            objects.put_file(upload_key("default", "up", path.name), path, content_type="image/tiff")
        yield Shop(store, objects, environment, scene.stat().st_size)


@pytest.fixture(scope="module")
def expected(opened: Shop) -> dict[str, str]:
    """Return the checksums of the scene as one worker makes it."""
    with opened.workers(1, PENSTOCK_SCENE_PARTS="1"):
        job = opened.end(opened.submit())
    assert job.parts is None
    return checksums(job)


@pytest.fixture
def shop(opened: Shop, expected: dict[str, str]) -> Shop:  # noqa: ARG001  (made before: no worker of a test may help)
    """Return the shop with an empty job store."""
    opened.store.client.flushall()
    return opened


def checksums(job: Job) -> dict[str, str]:
    assert job.state is State.SUCCEEDED, job.error
    return {artifact.name: artifact.sha256 for artifact in job.artifacts}


def test_a_shared_scene_has_the_bytes_of_one_worker(shop: Shop, expected: dict[str, str]) -> None:
    with shop.workers(3):
        key = shop.submit()
        wait_for(lambda: shop.read(key).parts, "it is not shared", timeout_s=60)
        job = shop.read(key)
        assert job.status is Status.RUNNING
        ended = shop.end(key)
        wait_for(lambda: not shop.saved(key), "its strips outlive it")
    assert checksums(ended) == expected
    assert ended.parts is not None
    assert (ended.parts.number, ended.parts.ended, ended.attempt) == (3, 3, 1)
    made = json.loads(ended.provenance or "")
    assert (made["parts"], made["resumed"] > 0) == (3, True)
    environment = Environments().read(shop.objects, key.tenant, made["environment"])
    assert environment is not None
    assert environment["software"].keys() >= {"penstock", "gdal"}
    assert (ended.progress.done, ended.progress.total) == (STRIPS * TILES, STRIPS * TILES)
    assert [each.outcome for each in ended.attempts] == ["split", "succeeded"]
    assert shop.ended_parts(key) == ["succeeded"] * 3
    assert list(shop.store.client.scan_iter("penstock:*:parts")) == []
    # The first attempt and the last one read nearly nothing, and the parts read their rows.
    assert ended.usage.bytes_in is not None
    assert ended.usage.bytes_in < 1.5 * shop.scene_bytes


def test_a_scene_that_is_too_small_to_share_is_fetched_once_and_whole(shop: Shop, expected: dict[str, str]) -> None:
    with shop.workers(2, PENSTOCK_SCENE_PART_TILES="1000"):
        ended = shop.end(shop.submit())
    assert ended.parts is None
    assert checksums(ended) == expected
    assert ended.usage.bytes_in == shop.scene_bytes
    [scene] = json.loads(ended.provenance or "")["inputs"]
    assert len(scene["sha256"]) == 64


def test_workers_that_are_killed_cost_time_and_nothing_else(shop: Shop, expected: dict[str, str]) -> None:
    with shop.workers(3) as workers:
        key = shop.submit()
        wait_for(lambda: len(shop.strips(key)) >= 3, "no strips are saved", timeout_s=60)
        progress = shop.read(key).progress.done
        for worker in workers[:2]:
            worker.send_signal(signal.SIGKILL)
            worker.wait(30)
        ended = shop.end(key)
    assert progress > 0
    assert checksums(ended) == expected
    assert shop.ended_parts(key) == ["succeeded"] * 3


def test_a_shared_change_of_two_dates_has_the_bytes_of_one_worker_though_others_are_killed(shop: Shop) -> None:
    change: dict[str, Any] = {"change": {"of": ["b"], "before": {"scene": "media://up/before.tif"}}}
    with shop.workers(1, PENSTOCK_SCENE_PARTS="1"):
        alone = shop.end(shop.submit("after", **change))
    assert {"change.tif", "before-classes.tif"} <= checksums(alone).keys()
    with shop.workers(3) as workers:
        key = shop.submit("after", **change)
        wait_for(lambda: len(shop.strips(key)) >= 3, "no strips are saved", timeout_s=60)
        for worker in workers[:2]:
            worker.send_signal(signal.SIGKILL)
            worker.wait(30)
        ended = shop.end(key)
    assert checksums(ended) == checksums(alone)
    assert ended.parts is not None
    assert (ended.parts.number, ended.parts.ended, ended.progress.total) == (3, 3, alone.progress.total)
    assert shop.ended_parts(key) == ["succeeded"] * 3


def test_all_workers_are_killed_and_others_finish(shop: Shop, expected: dict[str, str]) -> None:
    with shop.workers(2):
        key = shop.submit()
        wait_for(lambda: len(shop.strips(key)) >= 3, "no strips are saved", timeout_s=60)
    kept = len(shop.strips(key))
    with shop.workers(1):
        ended = shop.end(key)
    assert kept >= 3
    assert checksums(ended) == expected


def test_a_cancel_ends_the_parts_first(shop: Shop) -> None:
    with shop.workers(2):
        key = shop.submit()
        wait_for(lambda: len(shop.strips(key)) >= 2, "no strips are saved", timeout_s=60)
        assert shop.journal.run(journal.cancel(key)).status is Status.CANCELING
        ended = shop.end(key)
        assert ended.state is State.CANCELED
        assert set(shop.ended_parts(key)) == {"canceled"}
        assert shop.store.client.zcard("penstock:leases") == 0
        wait_for(lambda: not shop.saved(key), "its strips outlive it")


def test_after_a_loss_of_redis_the_scene_is_shared_again(shop: Shop, expected: dict[str, str]) -> None:
    with shop.workers(2):
        key = shop.submit()
        wait_for(lambda: len(shop.strips(key)) >= 3, "no strips are saved", timeout_s=60)
        before = set(shop.store.client.smembers(f"penstock:tenant:default:job:{key.id}:parts"))
        shop.store.client.flushall()
        recover(shop.store, shop.objects)
        wait_for(lambda: _parts(shop, key), "it is not shared again", timeout_s=60)
        after = set(shop.store.client.smembers(f"penstock:tenant:default:job:{key.id}:parts"))
        ended = shop.end(key)
    assert len(before) == 3
    assert before == after
    assert checksums(ended) == expected


def _parts(shop: Shop, key: JobKey) -> bool:
    try:
        return shop.read(key).parts is not None
    except PenstockError:
        return False
