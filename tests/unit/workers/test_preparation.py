"""A worker's models get ready one by one: what is here first, what must be fetched later, and a broken one never."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.catalogue.records import Catalogue
from penstock.errors import ModelUnavailable
from penstock.models import CatalogueEntry, Model
from penstock.processors.registry import Registry
from penstock.storage.redis.catalogues import CHECKING
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.preparation import Preparation
from penstock.workers.processing import InThread, Work
from penstock.workers.served_models import ServedModels
from tests.support.probe_processor import Probe

MODEL = Model(name="here", title="Probe", runner="fake", processor="probe", source=".", revision="1")
REMOTE = MODEL.model_copy(update={"name": "remote", "source": "hf://somebody/something"})


class Hub:
    """Fetches what is on a hub when it is open; the first tries may fail."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.failures = 0
        #: Released at each fetch.
        self.asked = threading.Semaphore(0)

    def localise(self, model: Model, fetch: bool) -> Model:
        if "://" not in model.source:
            return model
        if fetch:
            self.asked.release()
            assert self.open.wait(20), "the test never opened the hub"
        if not fetch or self.failures:
            self.failures -= fetch
            raise ModelUnavailable("the hub does not answer" if fetch else "not here")
        return model.model_copy(update={"source": "."})


class Door:
    """Makes processors when it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def __call__(self, model: Model) -> Probe:
        assert self.opened.wait(20), "the test never opened the door"
        return Probe(model)


class Asked(InThread):
    """Processors in this thread, which note the models that were checked and those that made a dummy."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.checked, self.dummies = list[str](), list[str]()

    def entry(self, model: Model, *, check: Callable[[], None] = lambda: None) -> CatalogueEntry:
        self.checked.append(model.name)
        return super().entry(model, check=check)

    def dummy(self, model: Model, folder: Path) -> Work:
        self.dummies.append(model.name)
        return super().dummy(model, folder)


class Stock:
    """Served models while they are prepared."""

    def __init__(self, folder: Path, hub: Hub) -> None:
        self.served, self.engine = ServedModels(), BatchingEngine(Runners.installed())
        self._changed = threading.Semaphore(0)
        #: `preparing` at each news.
        self.preparing: list[bool] = []
        self.door = Door()
        self.processing = Asked(Registry().register("probe", Probe).register("door", self.door))
        #: Earlier entries of the models for which jobs wait.
        self.awaited: dict[str, CatalogueEntry] = {}
        self.preparation = Preparation(
            self.served, self.processing, self.engine, folder, localise=hub.localise, on_news=self._note,
            awaited=lambda: self.awaited, fetch_again_s=0.01,
        )  # fmt: skip

    def _note(self) -> None:
        self.preparing.append(self.served.preparing())
        self._changed.release()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Return when something holds, looking whenever there is news."""
        while not condition():
            assert self._changed.acquire(timeout=20), "it never came to hold"

    def wait_ready(self, *names: str) -> None:
        self.wait(lambda: self.served.ready() == set(names))

    def problem(self, name: str) -> str | None:
        return {entry.name: entry.problem for entry in self.served.entries()}[name]

    def close(self) -> None:
        self.door.opened.set()
        self.preparation.end()
        self.engine.close()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def open_stock(tmp_path: Path, hub: Hub) -> Iterator[Callable[..., Stock]]:
    stock = Stock(tmp_path / "warm-up", hub)

    def begin(*models: Model, awaited: Sequence[CatalogueEntry] = ()) -> Stock:
        stock.awaited = {entry.name: entry for entry in awaited}
        stock.preparation.begin(Catalogue({model.name: model for model in models}))
        return stock

    yield begin
    hub.open.set()
    stock.close()


def test_a_model_is_ready_after_its_warm_up(open_stock: Callable[..., Stock]) -> None:
    stock = open_stock(MODEL)
    stock.wait_ready("here")
    assert stock.served.runnable()["here"].schema["title"] == "ProbeRequest"


def test_what_must_be_fetched_is_said_and_follows(open_stock: Callable[..., Stock], hub: Hub) -> None:
    hub.failures = 2
    stock = open_stock(REMOTE, MODEL)
    stock.wait_ready("here")
    stock.wait(lambda: stock.problem("remote") == "its files are being fetched")
    hub.open.set()
    stock.wait_ready("here", "remote")
    assert stock.problem("remote") is None
    assert stock.served.runnable()["remote"].model.source == "."


def test_a_model_is_in_preparation_until_it_could_not_be_fetched_three_times(
    open_stock: Callable[..., Stock], hub: Hub
) -> None:
    hub.failures = 4
    hub.open.set()
    stock = open_stock(REMOTE)
    stock.wait(lambda: len(stock.preparing) == 7)
    fetched_later, failed, fetched, ready = [True], [True, True, False, False], [True], [False]
    assert stock.preparing == [*fetched_later, *failed, *fetched, *ready]


def test_a_fetch_is_known_while_it_runs(open_stock: Callable[..., Stock], hub: Hub) -> None:
    stock = open_stock(REMOTE, MODEL)
    stock.wait_ready("here")
    assert hub.asked.acquire(timeout=20)
    assert stock.served.fetching()
    hub.open.set()
    stock.wait_ready("here", "remote")
    stock.preparation.end()
    assert not stock.served.fetching()


def test_a_model_that_cannot_be_used_keeps_no_other_from_it(open_stock: Callable[..., Stock]) -> None:
    broken = MODEL.model_copy(update={"name": "broken", "options": {"broken": True}})
    cold = MODEL.model_copy(update={"name": "no-warm-up", "runner": "no-such-runner"})
    pair = {"runner": "vllm", "warm_up": False, "options": {"sends": {"waves": "float32 (T)"}}}
    unfit = MODEL.model_copy(update={"name": "unfit", **pair})
    stock = open_stock(broken, cold, unfit, MODEL)
    stock.wait(lambda: CHECKING not in map(stock.problem, ("broken", "no-warm-up")))
    stock.wait(lambda: stock.problem("no-warm-up") is not None)
    stock.wait_ready("here")
    assert stock.served.runnable().keys() == {"here"}
    assert "an option" in (stock.problem("broken") or "")
    assert "no-such-runner" in (stock.problem("no-warm-up") or "")
    stock.wait(lambda: stock.problem("unfit") != CHECKING)
    assert "the runner 'vllm' cannot serve the processor 'probe'" in (stock.problem("unfit") or "")
    assert {entry.name for entry in stock.served.entries() if entry.ready} == {"here"}


def test_a_processor_that_hangs_is_told_of_at_once_and_keeps_no_other_from_it(open_stock: Callable[..., Stock]) -> None:
    hanging = MODEL.model_copy(update={"name": "hanging", "processor": "door"})
    stock = open_stock(hanging, MODEL)
    assert {entry.name for entry in stock.served.entries()} == {"hanging", "here"}
    stock.wait_ready("here")
    assert stock.problem("hanging") == CHECKING
    stock.door.opened.set()
    stock.wait_ready("hanging", "here")


def earlier(model: Model, **changes: Any) -> CatalogueEntry:
    """Return the entry of an earlier worker, as it comes out of Redis."""
    entry = InThread(Registry().register("probe", Probe)).entry(model)
    return CatalogueEntry.model_validate_json(entry.model_copy(update={"ready": True, **changes}).model_dump_json())


def test_a_waiting_job_replaces_the_warm_up_of_a_model_that_an_earlier_worker_warmed_up(
    open_stock: Callable[..., Stock],
) -> None:
    other = MODEL.model_copy(update={"name": "other"})
    stock = open_stock(other, MODEL, awaited=[earlier(MODEL)])
    stock.wait_ready("here", "other")
    assert stock.processing.checked == ["here", "other"]
    assert stock.processing.dummies == ["other"]
    assert stock.engine.loaded() == {"here", "other"}


@pytest.mark.parametrize("changes", [{"ready": False}, {"revision": "0"}, {"problem": "no weights"}])
def test_a_model_that_no_earlier_worker_warmed_up_is_warmed_up(
    open_stock: Callable[..., Stock], changes: dict[str, Any]
) -> None:
    stock = open_stock(MODEL, awaited=[earlier(MODEL, **changes)])
    stock.wait_ready("here")
    assert stock.processing.dummies == ["here"]


def test_a_model_that_cannot_be_loaded_any_more_has_a_problem_although_jobs_wait(
    open_stock: Callable[..., Stock],
) -> None:
    lost = MODEL.model_copy(update={"name": "lost", "runner": "no-such-runner"})
    stock = open_stock(lost, awaited=[earlier(lost, problem=None)])
    stock.wait(lambda: "no-such-runner" in (stock.problem("lost") or ""))
    assert stock.served.ready() == set()


OTHER = MODEL.model_copy(update={"name": "other"})


def test_models_for_which_jobs_wait_come_first(open_stock: Callable[..., Stock]) -> None:
    stock = open_stock(OTHER, MODEL, awaited=[earlier(MODEL)])
    stock.wait_ready("here", "other")
    assert stock.processing.checked == ["here", "other"]
