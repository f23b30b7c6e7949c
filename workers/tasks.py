"""The Celery side: one task, named by hints, that gives its thread to the slots."""

from __future__ import annotations

from celery import Celery

from penstock.queue import TASK
from penstock.workers.slots import Slots


def register(app: Celery, slots: Slots) -> None:
    """Make the app answer hints with the slots' work."""

    @app.task(name=TASK)  # type: ignore[untyped-decorator]  # Celery has no types
    def work(queue: str) -> int:
        return slots.work(queue)
