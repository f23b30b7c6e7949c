"""A process that dies between two steps of what it does."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.storage.journal.journal import Flow, Journal
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis.records import JobStore

T = TypeVar("T")


class Crashed(Exception):
    """The process died."""


class Fragile(Journal):
    """A journal whose process dies before its step number `left` (0 = the first)."""

    def __init__(self, store: JobStore, objects: ObjectStore, left: int) -> None:
        super().__init__(store, objects)
        self.left = left

    def run(self, flow: Flow[T]) -> T:
        """Perform a flow, or raise `Crashed` on the way."""
        return super().run(self._dying(flow))

    def _dying(self, flow: Flow[T]) -> Flow[T]:
        result: Any = None
        error: Exception | None = None
        while True:
            try:
                step = flow.send(result) if error is None else flow.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            if self.left == 0:
                raise Crashed
            self.left -= 1
            try:
                result, error = (yield step), None
            except Exception as raised:
                error = raised
