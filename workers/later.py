"""Celery, imported later: a worker's first job does not need it, and importing it takes as long as a small job."""

from __future__ import annotations

import threading
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING

from penstock.config import Settings

if TYPE_CHECKING:
    from penstock.queue import HintSender

#: Held while Celery is imported: it replaces its own module as it is imported, so another thread may get the old one.
_importing = threading.Lock()


def consumer() -> ModuleType:
    """Return the module `penstock.workers.consumer`. Safe to call from many threads."""
    with _importing:
        from penstock.workers import consumer

    return consumer


def stop() -> None:
    """Stop the consumption of hints, also before it has begun."""
    consumer().stop()


class LaterHints:
    """Hints to other workers, whose sender is imported with the first one. Safe to use from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _sender(self) -> HintSender:
        with _importing:
            from penstock.queue import HintSender

        return HintSender(self._settings.redis_address)

    def send(self, queue: str) -> bool:
        """Send a hint; see `HintSender.send`."""
        return self._sender.send(queue)
