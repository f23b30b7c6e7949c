"""The Celery task: a hint names it, and it lends its thread to the slots."""

from __future__ import annotations

from celery import Celery

from penstock.queue import TASK
from penstock.workers.slots import Slots


def register(app: Celery, slots: Slots) -> None:
    """Register the task that runs the slots' work on each hint."""

    @app.task(name=TASK)  # type: ignore[untyped-decorator]  # Celery has no types
    def work(queue: str) -> int:
        return slots.work(queue)
