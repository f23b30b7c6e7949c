"""Watch of servers that compute for models: a model is ready while its server answers, and its jobs wait meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.workers.served_models import ServedModels

#: Seconds between two questions to a server.
WATCH_EVERY_S = 5.0
#: Servers that are asked at the same time.
_ASKED = 8

#: Asks the server of a model if it has the model; raises `ModelUnavailable` with the reason.
Ask = Callable[[Model], None]

log = structlog.get_logger(__name__)


class ServerWatch:
    """Asks the servers of models every few seconds, in a thread of its own from the first model on."""

    def __init__(
        self, served: ServedModels, ask: Ask, on_news: Callable[[], None], *, every_s: float = WATCH_EVERY_S
    ) -> None:
        """`on_news` is called when a model becomes ready, or is ready no more."""
        self._served = served
        self._ask = ask
        self._on_news = on_news
        self._every_s = every_s
        self._lock = threading.Lock()
        self._models: list[Model] = []
        self._added = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="server-watch", daemon=True)

    def add(self, model: Model) -> None:
        """Watch the server of a model that is served, and ask it soon."""
        with self._lock:
            self._models.append(model)
            if not self._thread.is_alive():
                self._thread.start()
        self._added.set()

    def close(self) -> None:
        """Stop, after the questions that are under way."""
        self._ended.set()
        self._added.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        with ThreadPoolExecutor(_ASKED, thread_name_prefix="ask-server") as pool:
            while not self._ended.is_set():
                self._added.clear()
                if any(list(pool.map(self._look, list(self._models)))):
                    self._on_news()
                self._added.wait(self._every_s)

    def _look(self, model: Model) -> bool:
        """Ask a model's server; return True if the model became ready, or is ready no more."""
        reason = self._reason(model)
        changed = self._served.set_away(model.name, reason)
        if changed and reason is None:
            log.info("server.answers", model=model.name)
        elif changed:
            log.warning("server.away", model=model.name, reason=reason)
        return changed

    def _reason(self, model: Model) -> str | None:
        try:
            self._ask(model)
        except ModelUnavailable as error:
            return error.detail
        return None
