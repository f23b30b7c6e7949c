"""The scheduler: composes batches of the prompts of all runs, and gives the runs their answers.

Its thread is the only one that steps runners. Batches of a model in a process of its own are under way meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf

import structlog

from penstock.errors import DeviceLost, Drained, OutOfMemory, PenstockError
from penstock.workers.engine.base import Step
from penstock.workers.engine.batching import Batch, compose
from penstock.workers.engine.residency import Residency, Resident
from penstock.workers.engine.runs import Bucket, Item, Run
from penstock.workers.engine.steps import (
    DeviceTime,
    UnderWay,
    deliver,
    parts_of,
    send_step,
    take_step,
    translated,
)

log = structlog.get_logger(__name__)

#: Seconds that a device waits after a batch for prompts that are being drawn, to fill the next batch.
COLLECT_S = 0.003


class Scheduler:
    """The runs of one device and its batches; `_schedule` is the body of its thread."""

    def __init__(self, residency: Residency) -> None:
        """Schedule the prompts of loaded models."""
        self._residency = residency
        self._lock = threading.Lock()
        #: Notified when the scheduler may have something to do.
        self._work = threading.Condition(self._lock)
        #: The runs that are not over; the order is that of their beginning.
        self._runs: dict[Run, None] = {}
        #: Number of batches so far.
        self._batches = 0
        #: Prompts in the latest batch, by model.
        self._batch_sizes: dict[str, int] = {}
        #: Prompts that the device is working on.
        self._stepping: Sequence[Item] = ()
        #: Batches whose process has answered.
        self._answered: deque[UnderWay] = deque()
        self._time = DeviceTime(at=time.monotonic())
        self._loss: DeviceLost | None = None
        self._closed = False

    @property
    def lost(self) -> bool:
        """True once the device stopped working: every run fails from then on and the process should be replaced."""
        return self._loss is not None

    def stuck_s(self) -> float:
        """Return the seconds that the device has spent on a batch for which no job waits any more; otherwise 0."""
        with self._lock:
            last = max((item.run.over_s for item in self._stepping), default=inf)
        return max(0.0, time.monotonic() - last)

    def batch_sizes(self) -> dict[str, int]:
        """Return the number of prompts in the latest batch of each model that has run."""
        with self._lock:
            return dict(self._batch_sizes)

    def busy_share(self) -> float:
        """Return the share of about the last minute in which the device computed batches, from 0 to 1."""
        return self._time.share(at=time.monotonic())

    def _end_error(self) -> PenstockError | None:
        """Return the error of a closed engine or a lost device."""
        if self._loss:
            return DeviceLost(self._loss.detail)
        return Drained() if self._closed else None

    def _begin(self, run: Run, items: Sequence[Item] | None = None) -> None:
        """Begin a run, with its prompts if they are all here: one wake for all. The lock must be held."""
        run.turn = (self._batches, -1)
        if error := self._end_error():
            run.end(error)
        else:
            self._runs[run] = None
        if items is not None:
            for item in items:
                run.add(item)
            run.no_more_prompts()
            self._notify(run)

    def _notify(self, run: Run) -> None:
        """Wake the scheduler for new prompts, unless they only wait for their batch to fill. The lock must be held."""
        if run.resident.under_way:
            waiting = sum(len(each.waiting) for each in self._runs if each.resident is run.resident)
            if waiting < run.resident.runner.max_batch:
                return
        self._work.notify()

    def _wake(self) -> None:
        with self._lock:
            self._work.notify()

    def _schedule(self) -> None:
        try:
            while found := self._next():
                self._serve(found)
                del found  # otherwise the batch stays on the device until the next batch comes
        except BaseException:
            # Without a scheduler every job would wait forever.
            self._lose(DeviceLost("the engine's scheduler failed"))
            log.exception("engine.scheduler_failed")

    def _serve(self, found: Sequence[Item] | UnderWay) -> None:
        if isinstance(found, UnderWay):
            self._time.add(found.seconds)
            try:
                self._settle(found.items, found.resident, found.steps, retry=found.retry)
            finally:
                self._residency.release(found.resident)
            return
        resident = found[0].run.resident
        self._time.begin(at=time.monotonic())
        try:
            self._advance(found, resident)
        finally:
            self._time.end(at=time.monotonic())
            self._stepping = ()
            self._residency.release(resident)

    def _next(self) -> list[Item] | UnderWay | None:
        """Wait for answers or prompts; return a batch that was answered, or remove the next one from the queues.

        None after the engine's end.
        """
        with self._lock:
            collect_until = time.monotonic() + COLLECT_S
            while not self._end_error():
                if self._answered:
                    return self._answered.popleft()
                batch = compose(runs := list(self._runs), Bucket.limit)
                if batch is None:
                    # The device is idle: the next prompt goes at once.
                    collect_until = 0.0
                    self._work.wait()
                elif (left_s := collect_until - time.monotonic()) > 0 and self._may_grow(batch):
                    self._work.wait(left_s)
                else:
                    return self._take_batch(batch, runs)
            return None

    def _may_grow(self, batch: Batch[Bucket]) -> bool:
        """Return True if waiting could fill the batch; prompts between two steps never wait."""
        if batch.full or batch.begun:
            return False
        return any(run.resident is batch.bucket.resident and run.wants_prompts for run in self._runs)

    def _take_batch(self, batch: Batch[Bucket], runs: Sequence[Run]) -> list[Item]:
        items = [runs[queue].waiting[position] for queue, position in batch.picks]
        self._batches += 1
        for place, item in enumerate(items):
            item.run.waiting.remove(item)
            item.run.turn = (self._batches, place)
        # Released after the step, even if every job of the batch ends before.
        self._residency.hold(items[0].run.resident)
        return items

    def _advance(self, items: Sequence[Item], resident: Resident, *, retry: bool = True) -> None:
        with self._lock:
            for item in items:
                if item.run.over:
                    item.drop()
            items = [item for item in items if not item.run.over]
            self._stepping = items
        if not items:
            return
        if not resident.queues:
            self._settle(items, resident, partial(take_step, resident, items), retry=retry)
            return
        with self._lock:
            resident.under_way += 1
        self._residency.hold(resident)  # until the answer has been delivered
        batch = send_step(resident, items, retry=retry)
        batch.answer.add_done_callback(lambda _: self._take_answer(batch))

    def _take_answer(self, batch: UnderWay) -> None:
        with self._lock:
            batch.resident.under_way -= 1
            self._answered.append(batch)
            self._work.notify()

    def _settle(
        self,
        items: Sequence[Item],
        resident: Resident,
        take: Callable[[], Sequence[Step | PenstockError]],
        *,
        retry: bool,
    ) -> None:
        """Deliver the answers of a batch that `take` returns, or act on the error that it raises."""
        no_room = None
        try:
            steps = take()
        except DeviceLost as error:
            self._lose(error)
        except OutOfMemory as error:
            no_room = error.detail
        except BaseException as error:
            self._isolate(items, resident, error, retry=retry)
        else:
            with self._lock:
                self._batch_sizes[resident.model.name] = len(items)
                deliver(items, steps)
        if no_room is not None:
            # Outside the handler nothing refers to the error, whose frames hold the batch that did not fit.
            self._shrink(items, resident, no_room, retry=retry)

    def _shrink(self, items: Sequence[Item], resident: Resident, detail: str, *, retry: bool) -> None:
        """Halve the bucket's largest batch and run both halves; end the runs of a half or a prompt without room."""
        half = len(items) // 2
        log.warning("engine.out_of_memory", model=resident.model.name, batch=len(items), retry=bool(half and retry))
        with self._lock:
            items[0].bucket.reduce(max(1, half))
            if not half or not retry:
                for item in items:
                    item.run.end(OutOfMemory(detail))
                return
        for part in (items[:half], items[half:]):
            self._advance(part, resident, retry=False)

    def _isolate(self, items: Sequence[Item], resident: Resident, error: BaseException, *, retry: bool) -> None:
        """Divide a failed batch until the prompt that causes the error is alone, and end its run."""
        if len(items) == 1:
            ours = translated(error, resident.model, "neural network")
            with self._lock:
                items[0].drop()
                items[0].run.end(ours)
            return
        for part in parts_of(items, error):
            self._advance(part, resident, retry=retry)

    def _lose(self, error: DeviceLost) -> None:
        with self._lock:
            if self._loss:
                return
            self._loss = error
            for run in list(self._runs):
                run.end(DeviceLost(error.detail))
            self._work.notify()
        log.error("engine.device_lost", detail=error.detail)
