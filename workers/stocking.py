"""Getting a worker's models ready: bring their files here, import their processors elsewhere, warm them up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import structlog

from penstock.errors import Drained, Interruption, ModelUnavailable, ObjectStoreUnavailable, PenstockError
from penstock.models import Catalogue, CatalogueEntry, Model
from penstock.processors.registry import unusable
from penstock.storage.catalogues import CHECKING, FETCHING
from penstock.workers.engine.base import Engine
from penstock.workers.outcomes import blame
from penstock.workers.processing import Processing
from penstock.workers.serving import Shelf
from penstock.workers.warmup import warm_up

#: Between two tries to fetch a model whose source did not answer.
FETCH_AGAIN_S = 60.0
#: How many models are checked at a time.
CHECKS = 4

#: Returns the model with a local source, fetched if that is wanted; see `sources.localise`.
Localise = Callable[[Model, bool], Model]

log = structlog.get_logger(__name__)


class Stocking:
    """Fills a shelf from a thread of its own: with what is here first, then with what must be fetched."""

    def __init__(
        self, shelf: Shelf, processing: Processing, engine: Engine, folder: Path, *, localise: Localise,
        on_news: Callable[[], None], fetch_again_s: float = FETCH_AGAIN_S,
    ) -> None:  # fmt: skip
        """`folder` is scratch space for warm-ups; `on_news` is called when there is more to tell of a model."""
        self._shelf = shelf
        self._processing = processing
        self._engine = engine
        self._folder = folder
        self._localise = localise
        self._on_news = on_news
        self._fetch_again_s = fetch_again_s
        self._ended = threading.Event()
        #: Models that must be fetched.
        self._later: list[Model] = []
        self._first: list[Model] = []
        self._thread = threading.Thread(target=self._fill, name="stocking", daemon=True)

    def begin(self, catalogue: Catalogue) -> None:
        """Put every model on the shelf as one that is being checked, and see to all of them from now on.

        Of a wrong record only that it is wrong is told.
        """
        for wrong in catalogue.wrong.values():
            self._shelf.put(wrong.rest, unusable(wrong.rest, wrong.problem))
            log.warning("model.unavailable", model=wrong.name, problem=wrong.problem)
        self._first = list(catalogue.values())
        for model in self._first:
            self._shelf.put(model, unusable(model, CHECKING))
        self._thread.start()

    def end(self) -> None:
        """Stop, and wait until nothing is under way that can be stopped."""
        self._ended.set()
        self._thread.join()

    def _fill(self) -> None:
        self._stock_all(self._first, fetch=False)
        while self._later and not self._ended.is_set():
            waiting, self._later = self._later, []
            self._stock_all(waiting, fetch=True)
            if self._later:
                self._ended.wait(self._fetch_again_s)

    def _stock_all(self, models: Iterable[Model], *, fetch: bool) -> None:
        """Check models, some at a time so that one whose processor hangs keeps no other, and warm up what is usable."""
        with ThreadPoolExecutor(1 if fetch else CHECKS, thread_name_prefix="check") as checks:
            for checked in as_completed([checks.submit(self._stock, model, fetch=fetch) for model in models]):
                if (local := checked.result()) is not None:
                    self._warm_up(local)

    def _stock(self, model: Model, *, fetch: bool) -> Model | None:
        """Put a model on the shelf as far as it can be used; return it if it is to be warmed up."""
        try:
            self._check()
            local = self._localise(model, fetch)
            entry = self._processing.entry(local, check=self._check)
        except Interruption:
            return None
        except (ModelUnavailable, ObjectStoreUnavailable) as error:
            self._miss(model, error, fetch=fetch)
            return None
        except Exception as error:  # a loader's own fault must not keep the others from serving
            log.exception("model.unchecked", model=model.name)
            self._put(model, unusable(model, blame(error).detail))
            return None
        self._put(local, entry.model_copy(update={"ready": False}))
        if entry.problem is not None:
            log.warning("model.unavailable", model=model.name, problem=entry.problem)
            return None
        if not model.warm_up:
            self._ready(model.name)
            return None
        return local

    def _miss(self, model: Model, error: PenstockError, *, fetch: bool) -> None:
        """Tell that a model's files are not here; those of a remote one are tried again."""
        remote = "://" in model.source
        if remote:
            self._later.append(model)
        waits = remote and not fetch
        self._put(model, unusable(model, FETCHING if waits else error.detail))
        if not waits:
            log.warning("model.unavailable", model=model.name, problem=error.detail)

    def _put(self, model: Model, entry: CatalogueEntry) -> None:
        self._shelf.put(model, entry)
        self._on_news()

    def _warm_up(self, model: Model) -> None:
        warm_up(
            [model], self._processing, self._engine, self._folder,
            ready=self._ready, failed=self._failed, check=self._check,
        )  # fmt: skip

    def _ready(self, name: str) -> None:
        self._shelf.update(name, ready=True)
        self._on_news()

    def _failed(self, name: str, error: PenstockError) -> None:
        self._shelf.update(name, problem=error.detail)
        self._on_news()

    def _check(self) -> None:
        if self._ended.is_set():
            raise Drained
