"""Checkpoints of a job's attempts are found by the next, keep a job that advances alive, and go when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ObjectStoreUnavailable, ProcessorFailed
from penstock.intake.media import upload_key
from penstock.jobs import Claim, Job, JobKey, State, Submission
from penstock.storage.journal import journal
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.workers.checkpoints import StoredCheckpoints, forget_checkpoints
from penstock.workers.keeper.retention import delete_leftovers
from tests.support.claims import claim_one
from tests.support.echo_processor import Bench, open_bench
from tests.support.geo.scenes import pattern, write_scene
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

KEY = JobKey("default", "a")
ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["manifest", "redis"])
def bench(valkey: ValkeyProcess, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    with open_bench(valkey.url, tmp_path, durability=request.param) as bench:
        yield bench


def read(bench: Bench, key: JobKey) -> Job:
    return bench.store.run(records.read(key))


def saved(bench: Bench, key: JobKey) -> list[str]:
    return [name.removeprefix(key.checkpoints) for name in bench.keys(key.checkpoints)]


def claim(bench: Bench) -> Claim:
    return claim_one(bench.store, "default", models=["echo"])


def lose(bench: Bench, key: JobKey) -> None:
    """Have the job's lease end, as if its worker had died."""
    bench.store.client.zadd("penstock:leases", {str(key): 0})
    bench.journal.run(journal.sweep())


class Dumb(LocalStore):
    """A store that takes nothing and tells of nothing."""

    def put_file(self, *_: Any, **__: Any) -> ObjectInfo:
        raise ObjectStoreUnavailable("it is away")

    def put_bytes(self, *_: Any, **__: Any) -> ObjectInfo:
        raise ObjectStoreUnavailable("it is away")

    def list(self, _: str) -> Iterator[ObjectInfo]:
        raise ObjectStoreUnavailable("it is away")


class TestStored:
    @pytest.fixture
    def news(self) -> list[int]:
        return []

    @pytest.fixture
    def stored(self, tmp_path: Path, news: list[int]) -> StoredCheckpoints:
        return StoredCheckpoints(LocalStore(tmp_path / "store"), KEY, tmp_path / "found", news.append)

    def save(self, stored: StoredCheckpoints, name: str, text: str) -> None:
        path = stored.folder.with_name("draft")
        path.write_text(text)
        stored.save(name, path)
        path.unlink()

    def test_what_is_saved_is_found_by_its_prefix(self, stored: StoredCheckpoints, news: list[int]) -> None:
        for name in ("abc/1", "abc/2", "abd/1", "alone"):
            self.save(stored, name, name)
        self.save(stored, "abc/1", "again")
        found = stored.found("abc/")
        assert {name: path.read_text() for name, path in found.items()} == {"abc/1": "again", "abc/2": "abc/2"}
        assert news == [1, 1, 1, 1, 1, 0]

    def test_a_kept_text_is_found_and_is_no_progress(self, stored: StoredCheckpoints, news: list[int]) -> None:
        stored.keep("abc/finding", "what it found")
        assert {name: path.read_text() for name, path in stored.found("abc/").items()} == {
            "abc/finding": "what it found"
        }
        assert news == [0, 0]
        with pytest.raises(ProcessorFailed, match="invalid checkpoint name"):
            stored.keep("../abc/finding", "what it found")

    def test_another_jobs_are_not_found(self, stored: StoredCheckpoints, tmp_path: Path, news: list[int]) -> None:
        self.save(stored, "abc/1", "mine")
        other = StoredCheckpoints(stored.objects, JobKey("default", "b"), tmp_path / "others", news.append)
        assert other.found("abc/") == {}
        assert other.found("../../a/checkpoints/abc/") == {}

    def test_what_no_processor_could_have_saved_is_passed_over(self, stored: StoredCheckpoints) -> None:
        stored.objects.put_bytes(f"{KEY.checkpoints}abc/1/2", b"x", content_type="text/plain")
        stored.objects.put_bytes(f"{KEY.checkpoints}abc/a b", b"x", content_type="text/plain")
        assert stored.found("abc/") == {}

    def test_a_store_that_is_away_costs_work_and_no_job(self, tmp_path: Path, news: list[int]) -> None:
        (tmp_path / "draft").touch()
        away = StoredCheckpoints(Dumb(tmp_path), KEY, tmp_path / "found", news.append)
        away.save("abc/1", tmp_path / "draft")
        away.keep("abc/finding", "what it found")
        assert news == []
        forget_checkpoints(Dumb(tmp_path), KEY)
        with pytest.raises(ObjectStoreUnavailable):
            away.found("abc/")


@pytest.mark.breadth(but=("manifest-4",))
@pytest.mark.parametrize("preemptions", [4, 10])
def test_preemptions_that_advance_each_time_are_no_poison(bench: Bench, preemptions: int) -> None:
    times = preemptions + 2
    key = bench.submit("a", {"text": bench.upload("hi "), "times": times, "save": True})
    for attempt in range(1, preemptions + 1):
        preempt(bench, key, passes=1)
        assert read(bench, key).state is State.QUEUED
        assert read(bench, key).crashes == 1
        assert len(saved(bench, key)) == attempt
    bench.slots.work("default")
    job = read(bench, key)
    assert (job.state, job.text, job.attempt) == (State.SUCCEEDED, "hi " * times, preemptions + 1)
    assert (job.progress.done, job.progress.total) == (times, times)
    assert saved(bench, key) == []


@pytest.mark.breadth(but=("manifest",))
def test_preemptions_that_do_not_advance_are(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi "), "times": 12, "save": True})
    preempt(bench, key, passes=1)
    for _ in range(2):
        preempt(bench, key, passes=0)
    assert read(bench, key).state is State.FAILED
    assert read(bench, key).attempt == 3


def preempt(bench: Bench, key: JobKey, *, passes: int) -> None:
    """Let the job's next attempt save so many checkpoints, then have it lose its lease."""
    before = len(saved(bench, key))
    bench.gate.shut()
    for _ in range(passes):
        bench.gate.passes.release()
    claimed = claim(bench)
    worker = threading.Thread(target=lambda: bench.pipeline.run(claimed))
    worker.start()
    assert bench.gate.entered.wait(20)
    wait_for(
        lambda: len(saved(bench, key)) == before + passes == before + stored_by_last_attempt(bench, key),
        "the attempt does not advance",
    )
    lose(bench, key)
    bench.pipeline.heartbeat.hasten()
    wait_for(
        lambda: bench.pipeline.heartbeat.stuck_s() > 0 or not worker.is_alive(),  # it may be over before anybody looks
        "the attempt is never told that it lost its job",
    )
    bench.gate.opened.set()
    worker.join(30)
    assert not worker.is_alive()


@pytest.mark.breadth(but=("manifest",))
def test_checkpoints_go_when_a_job_ends_well_or_badly(bench: Bench) -> None:
    good = bench.submit("good", {"text": bench.upload("hi "), "times": 3, "save": True})
    bad = bench.submit("bad", {"text": bench.upload("hi ", upload_id="up2"), "times": 3, "save": True})
    canceled = bench.submit("canceled", {"text": bench.upload("hi ", upload_id="up3"), "times": 3, "save": True})
    for key in (good, bad, canceled):
        bench.objects.put_bytes(f"{key.checkpoints}echo/1", b"hi ", content_type="text/plain")
    bench.objects.put_bytes(upload_key("default", "up2", "in.txt"), b"bug", content_type="text/plain")
    lost = claim(bench)
    bench.journal.run(journal.release(lost))
    assert saved(bench, lost.key) == ["echo/1"]
    bench.journal.run(journal.cancel(canceled))
    bench.slots.work("default")
    assert read(bench, good).state is State.SUCCEEDED
    assert read(bench, bad).state is State.FAILED
    assert saved(bench, good) == []
    # Where an end saw nothing of what is saved, the keeper tidies up.
    delete_leftovers(bench.store, bench.objects, bench.settings)
    assert [saved(bench, key) for key in (bad, canceled)] == [[], []]


def test_a_claimed_jobs_cancel_and_its_last_crash_delete_what_it_saved(bench: Bench) -> None:
    canceled = bench.submit("canceled", {"text": bench.upload("hi "), "save": True})
    bench.journal.run(journal.release(claim(bench)))
    poison = bench.submit("poison", {"text": bench.upload("hi "), "save": True}, fingerprint="g")
    for key in (canceled, poison):
        bench.objects.put_bytes(f"{key.checkpoints}echo/1", b"hi ", content_type="text/plain")
    bench.journal.run(journal.cancel(canceled))
    assert saved(bench, canceled) == []
    for _ in range(3):
        claim(bench)
        lose(bench, poison)
    assert read(bench, poison).state is State.FAILED
    if bench.settings.durability == "redis":
        delete_leftovers(bench.store, bench.objects, bench.settings)  # its end is a script's alone
    assert saved(bench, poison) == []


def test_tidying_leaves_what_a_waiting_job_saved(bench: Bench) -> None:
    key = bench.submit("a", {"text": bench.upload("hi ")})
    bench.objects.put_bytes(f"{key.checkpoints}echo/1", b"x", content_type="text/plain")
    bench.objects.put_bytes("tenants/default/jobs/none/checkpoints/echo/1", b"x", content_type="text/plain")
    assert delete_leftovers(bench.store, bench.objects, bench.settings, at=time.time() + 90_000).checkpoints == 1
    assert saved(bench, key) == ["echo/1"]


SLOW = """
[models.slow]
title = "A network that takes its time"
runner = "fake"
processor = "raster-segmentation"
source = "."
revision = "1"
warm_up = false

[models.slow.options]
{cut}
tile_px = 256
bands = [{{ name = "one", mean = 100.0, std = 50.0 }}, {{ name = "other", mean = 120.0, std = 70.0 }}]
classes = [{{ id = 0, name = "a", colour = "#000000" }}, {{ id = 1, name = "b", colour = "#ffffff" }}]
default_radiometry = [{{ dtypes = ["uint8"], scale = 1.0 }}]
"""


@contextmanager
def worker_process(environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a worker as `penstock worker` does."""
    process = subprocess.Popen([sys.executable, "-m", "penstock.cli", "worker", *options], env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def submit(bench: Bench, job_id: str) -> JobKey:
    key = JobKey("default", job_id)
    scene = {"scene": "media://up/scene.tif"}
    bench.journal.run(journal.submit(Submission(key, "slow", "default", scene, "f", max_attempts=1), bench.limits))
    return key


def checksums(job: Job) -> dict[str, str]:
    assert job.state is State.SUCCEEDED, job.error
    return {artifact.name: artifact.sha256 for artifact in job.artifacts}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cut", "strips", "tiles"),
    [("halo_px = 8\nstride_px = 8", 20, 4), ('overlap = "hann"', 39, 7)],
    ids=["halo", "hann"],
)
@pytest.mark.breadth
def test_a_scene_whose_worker_is_killed_at_90_percent_repeats_a_strip_at_most(
    cut: str, strips: int, tiles: int, valkey: ValkeyProcess, tmp_path: Path
) -> None:
    (tmp_path / "slow.toml").write_text(SLOW.format(cut=cut))
    scene = write_scene(tmp_path / "scene.tif", np.concatenate([pattern(5120, 1024), pattern(1024, 5120).mT]))
    environment = slow_environment(valkey, tmp_path)
    with open_bench(valkey.url, tmp_path) as bench:
        bench.objects.put_file(upload_key("default", "up", "scene.tif"), scene, content_type="image/tiff")
        killed = submit(bench, "killed")
        with worker_process(environment) as worker:
            enough = int(0.9 * strips) * tiles
            wait_for(lambda: read(bench, killed).progress.done >= enough, "it does not get to 90 %", timeout_s=90)
            worker.send_signal(signal.SIGKILL)
            worker.wait(30)
        at, kept = read(bench, killed).progress, len(saved(bench, killed))
        assert (read(bench, killed).state, at.total) == (State.RUNNING, strips * tiles)
        assert at.done - kept * tiles <= tiles
        lose(bench, killed)
        whole = submit(bench, "whole")
        with worker_process(environment):
            for key in (killed, whole):
                wait_for(lambda key=key: read(bench, key).status.terminal, "it does not end", timeout_s=90)
                wait_for(lambda key=key: not saved(bench, key), "what it saved outlives it")
        job = read(bench, killed)
        assert (job.attempt, job.crashes, job.progress.done) == (2, 1, strips * tiles)
        assert checksums(job) == checksums(read(bench, whole))
        assert stored_by_last_attempt(bench, killed) == strips - 1 - kept
        assert stored_by_last_attempt(bench, whole) == strips - 1


@pytest.mark.breadth
@pytest.mark.slow
def test_a_scene_that_a_draining_worker_gives_back_keeps_its_strips(valkey: ValkeyProcess, tmp_path: Path) -> None:
    strips, tiles = 20, 4
    (tmp_path / "slow.toml").write_text(SLOW.format(cut="halo_px = 8\nstride_px = 8"))
    scene = write_scene(tmp_path / "scene.tif", np.concatenate([pattern(5120, 1024), pattern(1024, 5120).mT]))
    with open_bench(valkey.url, tmp_path) as bench:
        bench.objects.put_file(upload_key("default", "up", "scene.tif"), scene, content_type="image/tiff")
        key = submit(bench, "given-back")
        with worker_process(slow_environment(valkey, tmp_path), "--drain", "0") as worker:
            wait_for(lambda: len(saved(bench, key)) >= strips // 2, "it saves no strips", timeout_s=90)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        job, kept = read(bench, key), len(saved(bench, key))
        assert (job.state, job.crashes, kept >= strips // 2) == (State.QUEUED, 0, True)
        with worker_process(slow_environment(valkey, tmp_path), "--max-jobs", "1", "--drain", "0") as worker:
            assert worker.wait(90) == 0
        job = read(bench, key)
        assert (job.state, job.attempt, job.crashes) == (State.SUCCEEDED, 1, 0)
        assert job.progress.done == strips * tiles
        assert stored_by_last_attempt(bench, key) == strips - 1 - kept


def slow_environment(valkey: ValkeyProcess, folder: Path) -> dict[str, str]:
    """Return the environment of a worker with the slow network."""
    return {
        **os.environ, "PENSTOCK_REDIS_URL": valkey.url, "PENSTOCK_DATA": str(folder), "PENSTOCK_SECRET": "s",
        "PENSTOCK_MODELS": f'["{folder / "slow.toml"}"]', "PENSTOCK_POLL_S": "0.1", "PENSTOCK_SLOTS": "1",
    }  # fmt: skip


def stored_by_last_attempt(bench: Bench, key: JobKey) -> int:
    return int(bench.store.client.hget(f"penstock:tenant:default:job:{key.id}", "checkpoints") or 0)
