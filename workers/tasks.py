"""The Celery task: a hint names it, and it lends its thread to the slots."""

from __future__ import annotations

from celery import Celery

from penstock.queue import TASK
from penstock.workers.slots import Slots


def register(app: Celery, slots: Slots) -> None:
    """Register the task that runs the slots' work on each hint.

    A hint that finds no free slot waits for one. If it were dropped, the next claim would send another in its place:
    that took a fifth of a busy worker's time.
    """

    @app.task(name=TASK, shared=False)  # type: ignore[untyped-decorator]  # Celery has no types
    def work(queue: str) -> int:
        return slots.work(queue, patient=True)
