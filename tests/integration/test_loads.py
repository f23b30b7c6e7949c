"""Loads that end their process: the trial in a process of its own, the back-off, and its ends. Real processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LoadFailed, ModelUnavailable
from penstock.models import Model
from penstock.processors.registry import unusable
from penstock.storage.redis import catalogues, queues
from penstock.storage.redis import loads as stored
from penstock.storage.redis.records import JobStore
from penstock.workers.engine.runners import Runners
from penstock.workers.loads import Loads, record_of
from penstock.workers.served_models import ServedModels
from tests.support.deadly_runner import DEADLY, go_on, tries
from tests.support.polling import wait_for
from tests.support.service import ECHO, Service, assert_problem

pytestmark = pytest.mark.breadth


class Machine:
    """The loads of a worker on a machine of a name."""

    def __init__(self, store: JobStore, folder: Path, model: Model, name: str) -> None:
        self.served = ServedModels()
        self.served.put(model, unusable(model, "").model_copy(update={"problem": None, "ready": False}))
        self.loads = Loads(Runners({"deadly": DEADLY}), store, self.served, folder / name, machine=name)


@pytest.fixture
def machine(store: JobStore, tmp_path: Path) -> Callable[..., Machine]:
    """Return a function that gives a worker of a model on a machine."""
    return lambda model, name="here": Machine(store, tmp_path, model, name)


def test_a_load_that_ended_well_is_tried_once_for_all_workers(
    model_of: Callable[..., Model], machine: Callable[..., Machine], tmp_path: Path
) -> None:
    model = model_of("well")
    machine(model).loads.load(model, go_on).close()
    assert tries(tmp_path, "well") == 2  # in a process of its own, and here
    machine(model, "there").loads.load(model, go_on).close()
    assert tries(tmp_path, "well") == 3
    changed = model.model_copy(update={"revision": "2"})
    machine(changed, "there").loads.load(changed, go_on).close()
    assert tries(tmp_path, "well") == 5


def test_a_machine_remembers_a_load_that_ended_well_for_a_new_job_store(
    model_of: Callable[..., Model], store: JobStore, tmp_path: Path
) -> None:
    model = model_of("well")
    for tried in (2, 3):
        served = ServedModels()
        loads = Loads(Runners({"deadly": DEADLY}), store, served, tmp_path / "locks", marks=tmp_path / "marks")
        loads.load(model, go_on).close()
        assert tries(tmp_path, "well") == tried
        store.client.flushall()


def test_workers_of_a_machine_that_load_at_once_try_once(
    model_of: Callable[..., Model], machine: Callable[..., Machine], tmp_path: Path
) -> None:
    model = model_of("well")
    workers = [machine(model) for _ in range(2)]
    threads = [threading.Thread(target=worker.loads.load, args=(model, go_on)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tries(tmp_path, "well") == 3  # one in a process of its own, two here


def test_a_failed_load_waits_on_its_machine_and_others_try(
    model_of: Callable[..., Model], machine: Callable[..., Machine], store: JobStore, tmp_path: Path
) -> None:
    model = model_of("abort")
    here, there = machine(model), machine(model, "there")
    with pytest.raises(LoadFailed):
        here.loads.load(model, go_on)
    assert model.name not in here.served.claimable()
    [entry] = here.served.entries()
    assert (entry.ready, entry.problem, entry.note) == (False, None, "its load was ended by SIGABRT")

    with pytest.raises(LoadFailed, match="SIGABRT"):
        here.loads.load(model, go_on)
    assert tries(tmp_path, "abort") == 1  # it waits
    there.loads.look()
    assert there.served.failing(model.name) is None
    with pytest.raises(LoadFailed):
        there.loads.load(model, go_on)
    assert tries(tmp_path, "abort") == 2
    assert [(one.machine, one.count) for one in store.run(stored.load_failures())] == [("here", 1), ("there", 1)]


def test_the_wait_doubles_up_to_a_limit(store: JobStore) -> None:
    fail = stored.load_failed("m", "here", record="1", how="was ended by SIGABRT", lines=("a", "b"))
    assert [store.run(fail) for _ in range(7)] == [2, 4, 8, 16, 32, 60, 60]
    [found] = store.run(stored.load_failures())
    assert (found.count, found.how, found.lines) == (7, "was ended by SIGABRT", ("a", "b"))
    assert 0 < found.wait_s <= 60
    other = stored.load_failed("m", "there", record="2", how="was ended by SIGABRT", lines=())
    assert store.run(other) == 2  # another record: what was known of the first is forgotten
    assert [one.machine for one in store.run(stored.load_failures())] == ["there"]
    assert store.run(stored.load_succeeded("m", "there"))
    assert store.run(stored.load_failures()) == ()


def test_after_three_machines_no_further_one_tries_until_an_operator_says_so(
    model_of: Callable[..., Model], machine: Callable[..., Machine], store: JobStore, tmp_path: Path
) -> None:
    model = model_of("abort")
    for name in ("a", "b", "c"):
        with pytest.raises(LoadFailed):
            machine(model, name).loads.load(model, go_on)
    assert tries(tmp_path, "abort") == 3

    fourth = machine(model, "d")
    fourth.loads.look()
    assert model.name in fourth.served.claimable()  # its jobs fail at once
    [entry] = fourth.served.entries()
    assert entry.note == "its load was ended by SIGABRT on 3 machines"
    with pytest.raises(ModelUnavailable, match="SIGABRT") as raised:
        fourth.loads.load(model, go_on)
    assert not raised.value.retryable
    assert tries(tmp_path, "abort") == 3

    assert store.run(stored.retry(model.name)) == 3
    assert [again.name for again in fourth.loads.look()] == [model.name]
    (tmp_path / "abort.healed").touch()
    fourth.loads.load(model, go_on).close()
    assert fourth.served.failing(model.name) is None


def test_a_load_that_succeeds_later_makes_its_model_ready(
    model_of: Callable[..., Model], machine: Callable[..., Machine], store: JobStore, tmp_path: Path
) -> None:
    model = model_of("abort")
    here = machine(model)
    with pytest.raises(LoadFailed):
        here.loads.load(model, go_on)
    wait_for(lambda: here.loads.look() or model.name in here.served.claimable(), "the wait does not end")
    (tmp_path / "abort.healed").touch()
    here.loads.load(model, go_on).close()
    assert here.served.ready() == {model.name}
    assert store.run(stored.load_failures()) == ()


def test_the_digest_of_a_record_is_the_same_for_another_place_of_its_files(
    model_of: Callable[..., Model], tmp_path: Path
) -> None:
    model = model_of("well")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(b"1234")
    first, second = (model.model_copy(update={"source": str(tmp_path / name)}) for name in ("a", "b"))
    assert record_of(first) == record_of(second)
    (tmp_path / "b" / "weights").write_bytes(b"12345")
    assert record_of(first) != record_of(second)


async def test_clients_are_told_of_failed_loads_and_after_three_machines_refused(service: Service) -> None:
    unready = ECHO.model_copy(update={"ready": False})
    await service.jobs.run(catalogues.publish([unready], worker="w", queues=["default"], alive_s=600))
    await service.jobs.run(queues.seen("default", "w", 1, alive_s=600))

    async def fail(machine: str) -> dict[str, Any]:
        lines, how = ("no such symbol",), "was ended by SIGABRT"
        await service.jobs.run(stored.load_failed("echo", machine, record="1", how=how, lines=lines))
        answer = (await service.http.get("/v1/models/echo")).json()
        assert answer["load_failures"][0]["lines"] == ["no such symbol"]
        return dict(answer)

    first = await fail("a")
    assert (first["note"], first["problem"]) == ("its load was ended by SIGABRT", None)
    job = await service.submit()
    assert job["model_problem"] == "its load was ended by SIGABRT"
    assert (await fail("b"))["note"] == "its load was ended by SIGABRT on 2 machines"
    third = await fail("c")
    assert third["problem"] == "its load was ended by SIGABRT on 3 machines"
    refused = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "hello"}})
    assert third["problem"] in assert_problem(refused, 503, "model_unavailable")["detail"]

    assert await service.jobs.run(stored.retry("echo")) == 3
    assert (await service.submit())["model_problem"] is None
