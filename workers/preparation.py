"""Preparing a worker's models: fetch their files, check their processors in other processes, warm them up.

Models for which jobs wait come first. Their weights are loaded while their processors are checked; and where an
earlier worker has warmed the same model up, the first job takes the place of the dummy request.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path

import structlog

from penstock.catalogue.records import Catalogue
from penstock.errors import (
    Drained,
    Interruption,
    JobStoreError,
    LoadFailed,
    ModelUnavailable,
    ObjectStoreUnavailable,
    PenstockError,
)
from penstock.models import CatalogueEntry, Model
from penstock.processors.registry import unusable
from penstock.storage.redis.catalogues import CHECKING, FETCHING
from penstock.workers.engine.base import Engine
from penstock.workers.engine.device_class import device_problem
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.sources import is_remote
from penstock.workers.processing import Processing
from penstock.workers.retry_policy import to_penstock_error
from penstock.workers.served_models import Failing, ServedModels
from penstock.workers.server_watch import ServerWatch
from penstock.workers.warmup import warm_up

#: Seconds between two tries to fetch a model whose source did not respond.
FETCH_AGAIN_S = 60.0
#: Failed tries to fetch a model that keep a worker from leaving; later tries go on while the worker stays.
FETCH_TRIES = 3
#: Number of models checked at once.
CHECKS = 4

#: Returns the model with a local source; fetches the files if the argument is True; see `sources.localise`.
Localise = Callable[[Model, bool], Model]

log = structlog.get_logger(__name__)


class Preparation:
    """Fills the served models in a thread of its own: first local ones, then those that must be fetched."""

    def __init__(
        self, served: ServedModels, processing: Processing, engine: Engine, folder: Path, *, localise: Localise,
        on_news: Callable[[], None], awaited: Callable[[], Mapping[str, CatalogueEntry]] = dict,
        watch: ServerWatch | None = None, fetch_again_s: float = FETCH_AGAIN_S,
        failing: Callable[[Model], Failing | None] = lambda _: None,
    ) -> None:  # fmt: skip
        """`folder` is scratch space for warm-ups; `on_news` is called when a model's entry changes.

        `awaited` returns the models for which jobs wait, with the latest entries of earlier workers. `watch` gets the
        models for which a server computes: they need no warm-up. `failing` returns what keeps this machine from loading
        a model: the model's next job tries it.
        """
        self._served = served
        self._processing = processing
        self._engine = engine
        self._folder = folder
        self._localise = localise
        self._on_news = on_news
        self._fetch_again_s = fetch_again_s
        self._find_awaited = awaited
        self._watch = watch
        self._find_failing = failing
        #: Models for which jobs waited at the start, with their earlier entries.
        self._awaited: Mapping[str, CatalogueEntry] = {}
        self._loads = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._ended = threading.Event()
        #: Models that must be fetched.
        self._later: list[Model] = []
        self._first: list[Model] = []
        #: Failed tries to fetch, by model.
        self._failures: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._fill, name="preparation", daemon=True)

    def begin(self, catalogue: Catalogue) -> None:
        """Put every model among the served ones with the problem "is being checked", and start to check them.

        A model with an invalid record stays there with its own problem.
        """
        for wrong in catalogue.wrong.values():
            self._served.put(wrong.rest, unusable(wrong.rest, wrong.problem))
            log.warning("model.unavailable", model=wrong.name, problem=wrong.problem)
        self._first = list(catalogue.values())
        for model in self._first:
            self._served.put(model, unusable(model, CHECKING))
        self._thread.start()

    def again(self, models: Iterable[Model]) -> None:
        """Warm models up again, one after the other in a thread: their loads had failed."""
        for model in models:
            with suppress(RuntimeError):  # this has ended
                self._loads.submit(self._warm_up if model.warm_up else self._load_again, model)

    def end(self) -> None:
        """Stop, and wait until every step that can be stopped has ended."""
        self._ended.set()
        self._thread.join()
        self._loads.shutdown(cancel_futures=True)

    def _fill(self) -> None:
        with suppress(JobStoreError):  # then they come in the order of the catalogue
            self._awaited = self._find_awaited()
        urgent = [model for model in self._first if model.name in self._awaited]
        self._prepare_all(urgent, fetch=False)
        self._prepare_all([model for model in self._first if model not in urgent], fetch=False)
        while self._later and not self._ended.is_set():
            waiting, self._later = self._later, []
            with self._served.fetch():
                self._prepare_all(waiting, fetch=True)
            if self._later:
                self._ended.wait(self._fetch_again_s)

    def _prepare_all(self, models: Iterable[Model], *, fetch: bool) -> None:
        """Check models, several at once so that a hanging processor blocks no other model; warm up the usable ones."""
        with ThreadPoolExecutor(1 if fetch else CHECKS, thread_name_prefix="check") as checks:
            for checked in as_completed([checks.submit(self._prepare, model, fetch=fetch) for model in models]):
                if (local := checked.result()) is not None:
                    self._warm_up(local)

    def _prepare(self, model: Model, *, fetch: bool) -> Model | None:
        """Put a model among the served ones, with its problem if it has one; return it if it needs a warm-up."""
        try:
            self._check()
            local, served = self._localise(model, fetch), Runners.installed().is_served(model)
            failing = self._find_failing(local)
            awaited = failing is None and model.name in self._awaited
            loading = self._load_meanwhile(local) if awaited else None
            entry = self._processing.entry(local, check=self._check)
            if entry.problem is None and not model.warm_up and not served:  # the others' warm-up finds out
                entry = entry.model_copy(update={"problem": device_problem(local)})
        except Interruption:
            return None
        except (ModelUnavailable, ObjectStoreUnavailable) as error:
            self._report_missing(model, error, fetch=fetch)
            return None
        except Exception as error:  # a loader's fault must not keep the other models from serving
            log.exception("model.check_failed", model=model.name)
            self._put(model, unusable(model, to_penstock_error(error).detail))
            return None
        self._put(local, entry.model_copy(update={"ready": False}))
        if entry.problem is not None:
            log.warning("model.unavailable", model=model.name, problem=entry.problem)
            return None
        if served and self._watch is not None:
            self._watch.add(local)
            return None
        if failing is not None:
            self._served.set_failing(model.name, failing)
            self._on_news()
            return None
        if not model.warm_up or (loading is not None and self._replaces_warm_up(loading, entry)):
            self._ready(model.name)
            return None
        return local

    def _load_again(self, model: Model) -> None:
        try:
            self._engine.load(model, check=self._check)
        except Interruption:
            return
        except Exception as error:
            self._failed(model.name, to_penstock_error(error))
        else:
            self._ready(model.name)

    def _load_meanwhile(self, model: Model) -> Future[float]:
        return self._loads.submit(self._engine.load, model, check=self._check)

    def _replaces_warm_up(self, loading: Future[float], entry: CatalogueEntry) -> bool:
        """Wait until a model is loaded; return True if an earlier worker had warmed up the same model.

        A model that cannot be loaded is left to the warm-up, which reports it.
        """
        earlier = self._awaited[entry.name]
        is_same = _compared(entry) == _compared(earlier)
        if not (is_same and earlier.ready and earlier.problem is None) or loading.exception() is not None:
            return False
        log.info("model.warm_up_replaced", model=entry.name)
        return True

    def _report_missing(self, model: Model, error: PenstockError, *, fetch: bool) -> None:
        """Report that a model's files are missing; those of a remote source are tried again."""
        remote = is_remote(model)
        if remote:
            self._later.append(model)
            self._failures[model.name] += fetch
        waits = remote and not fetch
        again = remote and self._failures[model.name] < FETCH_TRIES
        self._put(model, unusable(model, FETCHING if waits else error.detail), again=again)
        if not waits:
            log.warning("model.unavailable", model=model.name, problem=error.detail)

    def _put(self, model: Model, entry: CatalogueEntry, *, again: bool = False) -> None:
        self._served.put(model, entry, again=again)
        self._on_news()

    def _warm_up(self, model: Model) -> None:
        warm_up(
            model, self._processing, self._engine, self._folder,
            ready=self._ready, failed=self._failed, check=self._check,
        )  # fmt: skip

    def _ready(self, name: str) -> None:
        self._served.set_ready(name)
        self._on_news()

    def _failed(self, name: str, error: PenstockError) -> None:
        if not isinstance(error, LoadFailed):  # such a model waits for its next try
            self._served.update(name, problem=error.detail)
        self._on_news()

    def _check(self) -> None:
        if self._ended.is_set():
            raise Drained


def _compared(entry: CatalogueEntry) -> Mapping[str, object]:
    """Return what makes the entries of two workers those of one model."""
    return entry.model_dump(mode="json", exclude={"ready", "problem", "note"})
