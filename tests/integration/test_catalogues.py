"""The API learns of models from workers that come, go, and differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from penstock.jobs import JobKey, Submission
from penstock.models import CatalogueEntry
from penstock.storage.redis import queues
from penstock.storage.redis.catalogues import CHECKING, FETCHING, awaited, catalogue, publish
from penstock.storage.redis.records import JobStore, QueueLimits, submit
from tests.support.service import ECHO
from tests.support.valkey import ValkeyProcess

Told = dict[str, tuple[bool, str | None]]


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[JobStore]:
    store = JobStore.open(valkey.url)
    yield store
    store.close()


def entry(name: str, **changes: Any) -> CatalogueEntry:
    return ECHO.model_copy(update={"name": name, "queue": "default", "aliases": (), "ready": True, **changes})


def checking(name: str, problem: str = CHECKING, **changes: Any) -> CatalogueEntry:
    return entry(name, ready=False, problem=problem, input_schema={}, **changes)


def tell(
    store: JobStore, worker: str, *entries: CatalogueEntry, queues: Sequence[str] = ("default",), alive_s: float = 60
) -> None:
    store.run(publish(entries, worker=worker, queues=queues, alive_s=alive_s))


def told(store: JobStore) -> Told:
    return {name: (e.ready, e.problem) for name, e in store.run(catalogue()).items()}


def test_a_model_that_its_worker_tells_of_no_more_is_gone(store: JobStore) -> None:
    tell(store, "w", entry("a"), entry("b"))
    tell(store, "w", entry("a"))
    assert told(store) == {"a": (True, None)}


def test_models_for_which_jobs_wait_keep_the_entry_of_a_worker_that_left(store: JobStore) -> None:
    tell(store, "w", entry("a"), entry("b"))
    limits = QueueLimits(max_queued=9, max_tenant_jobs=9, retention_s=60, max_crashes=3)
    store.run(submit(Submission(JobKey("default", "1"), "a", "default", {}, "f"), limits))
    tell(store, "w", entry("c"), queues=["other"])
    assert told(store)["a"] == (False, None)
    assert store.run(awaited(["default", "other"])) == {"a": entry("a")}
    assert store.run(awaited(["other"])) == {}
    tell(store, "next", checking("a"), checking("b"))
    assert store.run(awaited(["default"])) == {"a": entry("a")}
    tell(store, "next", entry("a", ready=False), checking("b"))
    assert store.run(awaited(["default"])) == {"a": entry("a", ready=False)}


def test_a_model_with_a_problem_is_never_ready(store: JobStore) -> None:
    tell(store, "w", entry("a", problem="no weights"))
    assert told(store) == {"a": (False, "no weights")}


def test_the_better_of_two_workers_counts_whoever_spoke_last(store: JobStore) -> None:
    tell(store, "good", entry("a"))
    tell(store, "bad", entry("a", problem="no weights"), entry("b"))
    assert told(store) == {"a": (True, None), "b": (True, None)}
    store.run(queues.leave("default", "good"))
    tell(store, "bad", entry("a", problem="no weights"), entry("b"))
    assert told(store) == {"a": (False, "no weights"), "b": (True, None)}


def test_without_a_worker_models_stay_known_and_are_not_ready(store: JobStore) -> None:
    tell(store, "w", entry("a"))
    store.run(queues.leave("default", "w"))
    assert told(store) == {"a": (False, None)}
    tell(store, "killed", entry("a"), alive_s=-1)
    assert told(store) == {"a": (False, None)}


@pytest.mark.parametrize("problem", [CHECKING, FETCHING])
def test_after_a_restart_what_worked_is_accepted_and_not_ready_and_old_problems_are_gone(
    store: JobStore, problem: str
) -> None:
    tell(store, "old", entry("a"), entry("b", problem="no weights"), entry("removed"))
    store.run(queues.leave("default", "old"))
    tell(store, "new", checking("a", problem), checking("b", problem), checking("c"))
    assert told(store) == {"a": (False, None), "b": (False, problem), "c": (False, CHECKING), "removed": (False, None)}
    assert store.run(catalogue())["a"].input_schema == ECHO.input_schema
    tell(store, "new", entry("a"), entry("b", problem="no memory"), entry("c", ready=False))
    assert told(store) == {"a": (True, None), "b": (False, "no memory"), "c": (False, None)}


def test_models_of_queues_whose_workers_are_all_gone_wait_for_them(store: JobStore) -> None:
    tell(store, "gpu", entry("big", queue="gpu"), entry("elsewhere", queue="other"), queues=["gpu"])
    store.run(queues.leave("gpu", "gpu"))
    tell(store, "cpu", entry("small"))
    assert told(store) == {"big": (False, None), "small": (True, None)}
    tell(store, "gpu-2", entry("bigger", queue="gpu"), queues=["gpu"])
    assert told(store) == {"bigger": (True, None), "small": (True, None)}
