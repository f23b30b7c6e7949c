"""Models in the object store: jobs are accepted without a worker, and after Redis was emptied."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from penstock.api.model_catalogue import MISS_S, RETRY_S, ModelCatalogue
from penstock.catalogue.records import Catalogue
from penstock.cli.doctor import examine
from penstock.config import Settings
from penstock.errors import ObjectStoreUnavailable
from penstock.formats import READS
from penstock.jobs import JobKey, State
from penstock.models import CatalogueEntry, Model, find
from penstock.processors.registry import Registry
from penstock.storage.journal.promotions import Promotion, put_promotion
from penstock.storage.journal.stored_models import (
    CHECKED,
    FRESH_S,
    PREFIX,
    PUBLISHED,
    REPUBLISH,
    UNCHECKED,
    UNSERVED,
    StoredModels,
    put_published,
    read_stored,
    withdraw,
)
from penstock.storage.objects.base import ObjectInfo, ObjectStore
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import catalogues, queues, records
from penstock.storage.redis.records import AsyncJobStore, JobStore
from penstock.workers.app import open_worker
from penstock.workers.keeper.keeper import store_models
from penstock.workers.processing import InThread
from tests.support.batch_keeper import KeeperMoves, line, parts, read, submitted
from tests.support.ceph import Ceph
from tests.support.command_line import Shell
from tests.support.echo_processor import Echo
from tests.support.polling import wait_for
from tests.support.service import ECHO, Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

MODEL = Model(name="echo", title="Echo", runner="fake", processor="echo", source=".", revision="1", warm_up=False)
LATER = ECHO.model_copy(update={"revision": "2", "title": "Echo, second edition"})
JOB = {"model": "echo", "input": {"text": "hello"}}


class Clock:
    """A clock that is set."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Store(LocalStore):
    """A real folder that counts its listings and may be away."""

    listings, away = 0, False
    before: Callable[[], object] = staticmethod(lambda: None)

    def list(self, prefix: str) -> Any:
        self.listings += prefix == PREFIX
        self.before()
        if self.away:
            raise ObjectStoreUnavailable("away")
        return super().list(prefix)


@pytest.fixture
def objects(tmp_path: Path) -> Store:
    return Store(tmp_path / "objects")


@pytest.fixture
async def jobs(valkey: ValkeyProcess) -> AsyncIterator[AsyncJobStore]:
    store = AsyncJobStore.open(valkey.url)
    yield store
    await store.close()


@pytest.fixture
async def empty(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    """Return a running API that no worker has ever told of a model."""
    async with serving(valkey.url, tmp_path) as running:
        valkey.flush()
        yield running


def shell_of(service: Service) -> Shell:
    return Shell({"PENSTOCK_DATA": str(service.settings.data), "PENSTOCK_SECRET": "of the tests"})


def serve(store: JobStore, *entries: CatalogueEntry, worker: str = "w") -> None:
    store.run(catalogues.publish(entries, worker=worker, queues=["default"], alive_s=600))


def leave(store: JobStore, worker: str = "w") -> None:
    store.run(queues.leave("default", worker))


def keep(store: JobStore, objects: ObjectStore) -> None:
    """Do the keeper's duty."""
    store_models(store, objects, StoredModels(objects))


async def told(jobs: AsyncJobStore, objects: ObjectStore, name: str = "echo") -> tuple[str, bool, str | None] | None:
    """Return the revision, the readiness and the note or problem of a model in a new API."""
    entry = find(await ModelCatalogue(jobs, objects).read(name), name)
    return None if entry is None else (entry.revision, entry.ready, entry.problem or entry.note)


async def test_a_job_of_a_published_model_waits_for_the_first_worker_and_runs(
    empty: Service, store: JobStore, tmp_path: Path
) -> None:
    assert_problem(await empty.http.post("/v1/jobs", json=JOB), 503, "not_ready")
    upload = (await empty.http.post("/v1/uploads", json={"filename": "a.txt", "size_bytes": 2})).json()
    sent = await empty.http.request(upload["method"], upload["url"], headers=upload["headers"], content=b"hi")
    assert sent.is_success, sent.text
    job, job_id = {"model": "echo", "input": {"text": upload["media"]}}, str(uuid.uuid4())
    processing = InThread(Registry().register("echo", Echo))
    put_published(empty.objects, processing.entry(MODEL), owner="ci")

    async def accepted() -> bool:  # the refusal above has read the store: the next reading comes within `MISS_S`
        return (await empty.http.put(f"/v1/jobs/{job_id}", json=job)).status_code == 202

    async with asyncio.timeout(MISS_S + 30):
        while not await accepted():
            await asyncio.sleep(0.05)
    [model] = (await empty.http.get("/v1/models")).json()["models"]
    assert (model["ready"], model["problem"], model["note"]) == (False, None, UNCHECKED)
    assert (await empty.http.get(f"/v1/jobs/{job_id}")).json()["status"] == "queued"
    assert (await empty.http.get("/v1/queues/default")).json()["wanted_workers"] == 1

    settings = empty.settings.model_copy(update={"poll_s": 0.05, "spool": tmp_path / "spool"})
    with open_worker(settings, store, catalogue=Catalogue({"echo": MODEL}), processing=processing) as worker:
        key = JobKey("default", job_id)
        await asyncio.to_thread(
            wait_for, lambda: store.run(records.read(key)).status.terminal, "the job did not end", timeout_s=60
        )
        worker.slots.drain()
    assert store.run(records.read(key)).state is State.SUCCEEDED


async def test_the_queue_of_a_published_model_wants_nothing_before_its_first_job(empty: Service) -> None:
    rare = MODEL.model_copy(update={"queue": "rare"})
    put_published(empty.objects, InThread(Registry().register("echo", Echo)).entry(rare), owner="ci")
    found = (await empty.http.get("/v1/queues/rare")).json()
    assert (found["queued"], found["workers"], found["wanted_workers"]) == (0, 0, 0)
    assert 'penstock_queue_wanted_workers{queue="rare"} 0.0' in (await empty.http.get("/metrics")).text


@pytest.mark.breadth
async def test_the_command_publishes_and_withdraws_without_weights(empty: Service, tmp_path: Path) -> None:
    records_of = tmp_path / "models.toml"
    records_of.write_text(
        '[models.clouds]\ntitle = "Clouds"\nrunner = "onnx"\nprocessor = "raster-classes"\n'
        'source = "no/such/file.onnx"\nrevision = "7"\n'
    )
    shell = shell_of(empty)
    wrong = await shell("models", "publish", "clouds", "--catalogue", str(records_of))
    assert wrong.code == 1
    assert "nothing was published: clouds: " in wrong.err
    done = await shell("models", "publish", "csmask", "--by", "the pipeline", "--json")
    assert done.code == 0, done.err
    assert [row["model"] for row in json.loads(done.out)] == ["csmask"]
    kept = read_stored(empty.objects).published["csmask"]
    assert kept.owner == "the pipeline"
    answer = (await empty.http.get("/v1/models/csmask")).json()
    assert (answer["ready"], answer["note"]) == (False, UNCHECKED)
    assert "scene" in json.dumps(answer["input_schema"])
    assert "publish" in (await shell("models", "unpublish", "csmask", "nobody")).err
    assert read_stored(empty.objects).entry("csmask") is not None, "all or nothing"
    assert (await shell("models", "unpublish", "csmask")).code == 0
    assert read_stored(empty.objects).entry("csmask") is None


async def test_a_withdrawn_model_is_refused_although_redis_remembers_it(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    put_published(objects, LATER, owner="ci")
    serve(store, ECHO, ECHO.model_copy(update={"name": "other", "aliases": ()}))
    leave(store)
    assert await told(jobs, objects) == ("2", False, UNCHECKED)
    assert withdraw(objects, "echo", owner="ci")
    assert await told(jobs, objects) is None
    assert await told(jobs, objects, "other") == ("1", False, None)
    serve(store, ECHO)
    assert await told(jobs, objects) == ("1", True, None), "a living worker serves it"
    put_published(objects, LATER, owner="ci")
    leave(store)
    assert await told(jobs, objects) == ("2", False, UNCHECKED)


async def test_an_unpublished_model_is_an_unknown_one_to_clients(service: Service) -> None:
    put_published(service.objects, LATER.model_copy(update={"name": "other", "aliases": ()}), owner="ci")
    assert (await service.http.post("/v1/jobs", json={**JOB, "model": "other"})).status_code == 202
    withdraw(service.objects, "other", owner="ci")
    service.swap(models=ModelCatalogue(service.jobs, service.objects))
    refused = await service.http.post("/v1/jobs", json={**JOB, "model": "other"})
    problem = assert_problem(refused, 422, "unknown_model")
    assert "there is no model 'other'; known models: broken, echo (parrot)" in problem["detail"]


async def test_the_check_of_a_worker_outlives_it_and_redis(
    valkey: ValkeyProcess, jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    serve(store, ECHO, ECHO.model_copy(update={"name": "ill", "aliases": (), "problem": "no weights"}))
    keep(store, objects)
    valkey.flush()
    assert await told(jobs, objects) == ("1", False, UNSERVED)
    assert await told(jobs, objects, "ill") == ("1", False, f"no weights ({REPUBLISH} ill`)")
    keep(store, objects)  # with an empty Redis nothing is deleted
    assert await told(jobs, objects) == ("1", False, UNSERVED)


async def test_the_check_of_a_living_worker_wins_over_the_published_entry(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    put_published(objects, LATER, owner="ci")
    serve(store, ECHO.model_copy(update={"problem": "no memory"}))
    assert await told(jobs, objects) == ("1", False, "no memory")
    leave(store)
    assert await told(jobs, objects) == ("2", False, UNCHECKED)


async def test_while_the_first_worker_checks_a_model_jobs_are_accepted(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    put_published(objects, ECHO, owner="ci")
    checking = ECHO.model_copy(update={"ready": False, "problem": catalogues.CHECKING, "input_schema": {}})
    serve(store, checking)
    assert await told(jobs, objects) == ("1", False, catalogues.CHECKING)
    entry = (await ModelCatalogue(jobs, objects).read("echo"))["echo"]
    assert (entry.problem, entry.input_schema) == (None, ECHO.input_schema)


async def test_a_stored_problem_gives_way_to_the_next_check(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    serve(store, ECHO.model_copy(update={"problem": "no weights"}))
    keep(store, objects)
    leave(store)
    assert await told(jobs, objects) == ("1", False, f"no weights ({REPUBLISH} echo`)")
    serve(store, ECHO.model_copy(update={"ready": False, "problem": catalogues.CHECKING}))
    assert await told(jobs, objects) == ("1", False, catalogues.CHECKING)


async def test_while_a_worker_checks_the_published_entry_counts_and_not_that_of_an_earlier_worker(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    serve(store, ECHO)
    keep(store, objects)
    leave(store)
    put_published(objects, LATER, owner="ci")
    serve(store, LATER.model_copy(update={"ready": False, "problem": catalogues.CHECKING}), worker="w2")
    assert (await told(jobs, objects) or ("",))[0] == "2"
    serve(store, LATER, worker="w2")
    assert await told(jobs, objects) == ("2", True, None)


async def test_a_model_that_is_withdrawn_while_a_worker_lives_is_gone_with_it(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    serve(store, ECHO)
    keep(store, objects)
    assert withdraw(objects, "echo", owner="ci")
    keep(store, objects)
    assert await told(jobs, objects) == ("1", True, None)
    leave(store)
    assert await told(jobs, objects) is None


async def test_a_check_that_fails_again_after_a_publication_counts(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    ill = ECHO.model_copy(update={"problem": "no weights"})
    serve(store, ill)
    keep(store, objects)
    leave(store)
    put_published(objects, ECHO, owner="ci")
    assert await told(jobs, objects) == ("1", False, UNCHECKED)
    serve(store, ill, worker="w2")
    keep(store, objects)
    leave(store, "w2")
    assert await told(jobs, objects) == ("1", False, f"no weights ({REPUBLISH} echo`)")


async def test_a_stored_name_does_not_hide_the_living_model_that_has_it_as_an_alias(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    put_published(objects, LATER.model_copy(update={"name": "parrot", "aliases": ()}), owner="ci")
    serve(store, ECHO)
    entry = find(await ModelCatalogue(jobs, objects).read(), "parrot")
    assert entry is not None
    assert entry.name == "echo"


async def test_a_worker_with_another_catalogue_removes_its_check_and_leaves_what_was_published(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    other, both = (ECHO.model_copy(update={"name": name, "aliases": ()}) for name in ("other", "both"))
    put_published(objects, both, owner="ci")
    serve(store, ECHO, other, both)
    keep(store, objects)
    assert set(read_stored(objects).checked) == {"echo", "other", "both"}
    serve(store, ECHO)
    keep(store, objects)
    stored = read_stored(objects)
    assert (set(stored.checked), set(stored.published)) == ({"echo"}, {"both"})
    assert await told(jobs, objects, "other") is None
    assert await told(jobs, objects, "both") == ("1", False, UNCHECKED)


async def test_a_batch_of_a_published_model_becomes_jobs_without_a_worker(empty: Service) -> None:
    keeper = KeeperMoves(empty)
    await keeper.expand()
    put_published(empty.objects, ECHO, owner="ci")
    batch = await submitted(empty, requests=[line("a"), line("b")])
    await keeper.expand()
    assert parts(await read(empty, batch["id"])) == {"total": 2, "queued": 2}
    keeper.close()


def test_the_doctor_names_the_models_that_need_no_worker(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, secret="s")
    objects = open_store(settings.store_url, settings)
    put_published(objects, ECHO, owner="ci")
    (found,) = [each for each in examine(settings, "http://127.0.0.1:1") if each.name == "stored models"]
    assert (found.ok, found.detail) == (True, "without a worker, jobs are accepted for: echo")
    objects.put_bytes(f"{PUBLISHED}later.json", b'{"version": 99}', content_type="application/json")
    (found,) = [each for each in examine(settings, "http://127.0.0.1:1") if each.name == "stored models"]
    assert (found.ok, found.detail.rpartition("; ")[2]) == (False, "this release cannot read: later")


def test_the_doctor_names_an_alias_that_leads_nowhere(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, secret="s")
    put_promotion(open_store(settings.store_url, settings), Promotion("voice", {"gone": 100}))
    (found,) = [each for each in examine(settings, "http://127.0.0.1:1") if each.name == "promoted aliases"]
    assert not found.ok
    assert "no model is served for voice" in found.detail


async def test_only_changed_checks_are_stored_again(store: JobStore, objects: Store) -> None:
    serve(store, ECHO)
    keep(store, objects)
    before = objects.head(f"{CHECKED}echo.json")
    serve(store, ECHO.model_copy(update={"ready": False}))
    keep(store, objects)
    assert objects.head(f"{CHECKED}echo.json") == before
    serve(store, LATER)
    keep(store, objects)
    assert objects.head(f"{CHECKED}echo.json") != before


@pytest.mark.parametrize(
    "body",
    [json.dumps({"version": READS + 1, "entry": {"another": "shape"}}), "{", "[]", '{"version": 1}'],
    ids=["newer", "cut", "list", "without an entry"],
)
async def test_an_object_that_cannot_be_read_is_skipped(jobs: AsyncJobStore, objects: Store, body: str) -> None:
    objects.put_bytes(f"{PUBLISHED}echo.json", body.encode(), content_type="application/json")
    put_published(objects, ECHO.model_copy(update={"name": "other", "aliases": ()}), owner="ci")
    assert await told(jobs, objects) is None
    assert await told(jobs, objects, "other") == ("1", False, UNCHECKED)


async def test_unknown_fields_of_an_entry_are_ignored(jobs: AsyncJobStore, objects: Store) -> None:
    entry = {**ECHO.model_dump(mode="json"), "of_a_later_release": 1}
    body = json.dumps({"version": READS, "entry": entry, "more": 2}).encode()
    objects.put_bytes(f"{PUBLISHED}echo.json", body, content_type="application/json")
    assert await told(jobs, objects) == ("1", False, UNCHECKED)


async def test_the_object_store_is_not_read_for_each_submission(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    put_published(objects, LATER, owner="ci")
    clock = Clock()
    models = ModelCatalogue(jobs, objects, clock=clock)
    await asyncio.gather(*(models.read("echo") for _ in range(50)))
    assert objects.listings == 1
    await asyncio.gather(*(models.read("nobody") for _ in range(50)))
    assert objects.listings == 1
    clock.now_s += MISS_S
    await asyncio.gather(*(models.read("nobody") for _ in range(50)))
    assert objects.listings == 2
    clock.now_s += FRESH_S
    await asyncio.gather(*(models.read("parrot") for _ in range(50)))
    assert objects.listings == 3
    serve(store, ECHO)
    clock.now_s += FRESH_S
    await models.read("echo")
    assert objects.listings == 3, "a model that a living worker serves needs no reading"


async def test_an_absent_store_hinders_only_models_that_no_worker_serves(
    jobs: AsyncJobStore, store: JobStore, objects: Store
) -> None:
    objects.away = True
    serve(store, ECHO)
    clock = Clock()
    models = ModelCatalogue(jobs, objects, clock=clock)
    assert (await models.read("echo"))["echo"].ready
    with pytest.raises(ObjectStoreUnavailable):
        await models.read("nobody")
    assert objects.listings == 1
    objects.away, objects.listings = False, 0
    with pytest.raises(ObjectStoreUnavailable):  # not before `RETRY_S`
        await models.read("nobody")
    assert objects.listings == 0
    clock.now_s += RETRY_S
    assert "nobody" not in await models.read("nobody")


async def test_a_hanging_store_stalls_no_submission_for_a_served_model(service: Service, objects: Store) -> None:
    answer = Event()
    objects.before = answer.wait  # type: ignore[method-assign]
    service.swap(models=ModelCatalogue(service.jobs, objects))
    listing = asyncio.create_task(service.http.get("/v1/models"))
    try:
        await asyncio.to_thread(wait_for, lambda: objects.listings == 1, "nobody lists")
        await service.submit()
        assert not listing.done()
        assert {model["name"] for model in (await listing).json()["models"]} == {"echo", "broken"}
    finally:
        answer.set()


@pytest.mark.slow
@pytest.mark.breadth
async def test_s3_keeps_published_models_and_checks(ceph: Ceph, jobs: AsyncJobStore, store: JobStore) -> None:
    settings = Settings(object_store=f"s3://{ceph.bucket()}/some/prefix", s3=ceph.s3, secret="s")
    bucket = open_store(settings.store_url, settings)
    put_published(bucket, LATER, owner="ci")
    assert await told(jobs, bucket) == ("2", False, UNCHECKED)
    serve(store, ECHO, ECHO.model_copy(update={"name": "other", "aliases": ()}))
    keep(store, bucket)
    store.client.flushall()
    assert await told(jobs, bucket, "other") == ("1", False, UNSERVED)
    assert withdraw(bucket, "other", owner="ci")
    assert await told(jobs, bucket, "other") is None


def test_a_put_is_whole_and_the_later_one_counts(objects: Store) -> None:
    put_published(objects, ECHO, owner="ann")
    first: ObjectInfo = objects.head(f"{PUBLISHED}echo.json")
    put_published(objects, LATER, owner="ben")
    found = read_stored(objects, read_stored(objects)).published["echo"]
    assert found.etag != first.etag
    assert found.entry is not None
    assert (found.entry.revision, found.owner) == ("2", "ben")
