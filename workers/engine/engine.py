"""The engine: job threads submit prompts, one scheduler thread composes batches for the device.

Three kinds of threads share one lock. A job's thread takes outputs; the job's feeder draws and admits prompts ahead, so
that decoding overlaps with the forward pass; only the scheduler steps the runners. The lock is held for short moments.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import structlog

from penstock.errors import DeviceLost, Drained, OutOfMemory, PenstockError, ProcessorFailed
from penstock.models import Model
from penstock.observation.listening import listener, listening
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Check, Done, OnBatch, OnDevice, Step
from penstock.workers.engine.batching import Batch, compose, search
from penstock.workers.engine.memory import budget_bytes
from penstock.workers.engine.residency import Load, Residency, Resident
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.runs import Bucket, Item, Run, Window
from penstock.workers.engine.steps import (
    DeviceTime,
    Feeder,
    admitted,
    close_prompts,
    log_cause,
    progressed,
    take_step,
    translated,
)

log = structlog.get_logger(__name__)

#: Seconds that a device waits after a batch for prompts that are being drawn, to fill the next batch.
COLLECT_S = 0.003


class BatchingEngine:
    """An `Engine` for one device. Construction starts the scheduler's thread; `close` ends it."""

    def __init__(
        self,
        runners: Runners,
        *,
        max_models: int = 16,
        memory_bytes: int | None = None,
        sharers: int = 1,
        ahead_prompts: int = 4,
        ahead_bytes: int = 256 * 2**20,
        load: Load | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create an engine with these runners and start its scheduler.

        `memory_bytes` limits the weights of all loaded models (None = most of the device's memory, divided by the
        processes that share it, `sharers`). `ahead_prompts` and `ahead_bytes` limit the prompts and outputs that
        one run holds in memory beside its largest prompt. A run may draw two batches of prompts ahead even if
        `ahead_prompts` is smaller; `ahead_bytes` still applies.
        `load` loads a model (None = by its runner). `clock` returns the seconds by which `measure` compares batches.
        """
        budget = (lambda: memory_bytes) if memory_bytes is not None else partial(budget_bytes, sharers)
        self._residency = Residency(runners, max_models=max_models, budget_bytes=budget, load=load)
        self._ahead = Window(ahead_prompts, ahead_bytes)
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
        self._time = DeviceTime(at=time.monotonic())
        #: Seconds by which batches are measured.
        self._clock = clock
        self._loss: DeviceLost | None = None
        self._closed = False
        self._scheduler = threading.Thread(target=self._schedule, name="engine-scheduler", daemon=True)
        self._scheduler.start()

    @property
    def lost(self) -> bool:
        """True once the device stopped working: every run fails from then on and the process should be replaced."""
        return self._loss is not None

    def stuck_s(self) -> float:
        """Return the seconds that the device has spent on a batch for which no job waits any more; otherwise 0."""
        with self._lock:
            last = max((item.run.over_s for item in self._stepping), default=inf)
        return max(0.0, time.monotonic() - last)

    def loaded(self) -> frozenset[str]:
        """Return the names of the loaded models."""
        return self._residency.names()

    def batch_sizes(self) -> dict[str, int]:
        """Return the number of prompts in the latest batch of each model that has run."""
        with self._lock:
            return dict(self._batch_sizes)

    def busy_share(self) -> float:
        """Return the share of about the last minute in which the device computed batches, from 0 to 1."""
        return self._time.share(at=time.monotonic())

    def kept_bytes(self) -> dict[str, int]:
        """Return the bytes of cached encodings of each loaded model that caches them."""
        return self._residency.kept_bytes()

    def load(self, model: Model, *, check: Check) -> float:
        """Load a model unless it is loaded; return the seconds that its latest loading took."""
        with self._using(model, self._guarded(check)) as resident:
            return resident.load_s

    def run(
        self,
        model: Model,
        prompts: Iterator[Prompt],
        *,
        check: Check,
        cost: int | None = None,
        on_batch: OnBatch | None = None,
        on_device: OnDevice | None = None,
        ready: bool = False,
    ) -> Generator[Output]:
        """Yield one output per prompt, in order; see `Engine.run`.

        Raises the error of `prompts`, of `check` or of a prompt, `ModelUnavailable`, `OutOfMemory`, `DeviceLost`, or
        `ProcessorFailed` for an error that is not Penstock's. Closing early takes as long as drawing one prompt.
        """
        check = self._guarded(check)
        with self._using(model, check) as resident:
            run = self._new_run(resident, inf if cost is None else cost, on_batch, on_device)
            feeder = None if ready else Feeder(partial(self._feed, run, prompts), f"feed-{model.name}")
            try:
                if feeder is None:
                    items = admitted(run, prompts)
                    with self._lock:
                        self._begin(run, items)
                else:
                    with self._lock:
                        self._begin(run)
                    feeder.start()
                yield from run.take(check)
            except ProcessorFailed as error:
                log_cause(model, error)
                raise
            finally:
                if not run.over:
                    with self._lock:
                        run.end()
                if feeder is not None:
                    feeder.wait()

    def fill(self, model: Model, prompt: Prompt, *, check: Check) -> int:
        """Return how many copies of a prompt fit into a batch, by running them; see `Engine.fill`."""
        check = self._guarded(check)
        with self._using(model, check) as resident:
            bucket = Bucket.of(resident, resident.fitted(prompt))
            if resident.elsewhere is not None:  # the other engine's memory is not tried out
                return 1
            while (copies := bucket.limit().copies(prompt.cost)) > 1:
                try:
                    self._run_at_once(resident, [prompt] * copies, check)
                except OutOfMemory:
                    bucket.reduce(min(bucket.limit().prompts, copies // 2))
                else:
                    return min(copies, bucket.limit().prompts)
            return 1

    def measure(self, model: Model, prompt: Prompt, most: int, *, within_s: float, check: Check) -> int:
        """Return the smallest batch of about the highest rate, and keep to its cost; see `Engine.measure`."""
        check, ends_s = self._guarded(check), self._clock() + within_s
        with self._using(model, check) as resident:
            steps, cost = search(most), resident.fitted(prompt).cost
            size, before = next(steps), resident.best_cost
            try:
                resident.best_cost = inf
                while True:
                    size = steps.send(self._rate(resident, [prompt] * size, ends_s, check))
            except StopIteration as end:
                chosen: int = end.value
                before = inf if chosen == most else chosen * cost
                return chosen
            finally:
                resident.best_cost = before

    def _rate(self, resident: Resident, prompts: Sequence[Prompt], ends_s: float, check: Check) -> float | None:
        """Return the rate of a batch, the higher of two tries; None after `ends_s`, or if other jobs disturbed both."""
        rates = [
            len(prompts) / took_s
            for _ in range(2)
            if self._clock() < ends_s and (took_s := self._run_at_once(resident, prompts, check)) is not None
        ]
        return max(rates, default=None)

    def close(self, *, timeout_s: float = 10) -> None:
        """Stop the scheduler and free the device; runs that have not ended raise `Drained`.

        A device that does not finish its step within `timeout_s` is not freed.
        """
        with self._lock:
            self._closed = True
            for run in list(self._runs):
                run.end(Drained())
            self._work.notify()
        self._scheduler.join(timeout_s)
        if self._scheduler.is_alive():
            log.error("engine.busy_at_close", timeout_s=timeout_s)
        else:
            self._residency.close()

    def _guarded(self, check: Check) -> Check:
        def guarded() -> None:
            check()
            if (self._loss or self._closed) and (error := self._end_error()):
                raise error

        return guarded

    def _end_error(self) -> PenstockError | None:
        """Return the error of a closed engine or a lost device."""
        if self._loss:
            return DeviceLost(self._loss.detail)
        return Drained() if self._closed else None

    @contextmanager
    def _using(self, model: Model, check: Check) -> Iterator[Resident]:
        """Use a model, which is loaded unless it is loaded already."""
        try:
            resident = self._residency.acquire(model, check)
            try:
                yield resident
            finally:
                self._residency.release(resident)
        except DeviceLost as error:  # raised while loading or copying: the scheduler may not have failed yet
            self._lose(error)
            raise

    # The feeder's side

    def _new_run(
        self, resident: Resident, cost: float, on_batch: OnBatch | None = None, on_device: OnDevice | None = None
    ) -> Run:
        prompts = max(self._ahead.prompts, 2 * resident.runner.max_batch)
        if resident.elsewhere is not None:
            resident.elsewhere.listen(self._wake)
        return Run(
            resident, Window(prompts, self._ahead.bytes), self._lock, self._runs, left=cost,
            on_batch=on_batch, on_device=on_device, listener=listener(),
        )  # fmt: skip

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
            self._work.notify()

    def _feed(self, run: Run, prompts: Iterator[Prompt]) -> None:
        error = None
        try:
            self._draw(run, prompts)
        except BaseException as raised:
            error = translated(raised, run.resident.model, "preparation")
        finally:
            close_prompts(prompts)
        with self._lock:
            if error:
                run.end(error)
            run.no_more_prompts()
            self._work.notify()  # a batch that is collected may have nobody to wait for

    def _draw(self, run: Run, prompts: Iterator[Prompt]) -> None:
        with self._lock:
            going = run.wait_for_room()
        while going and (prompt := next(prompts, None)) is not None:
            with listening(run.listener):
                item = Item.of(run, prompt)
            del prompt  # else its arrays lived until the next one
            with self._lock:
                run.add(item)
                self._work.notify()
                going = run.wait_for_room()

    def _run_at_once(self, resident: Resident, prompts: Sequence[Prompt], check: Check) -> float | None:
        """Submit prompts together as one batch, and drop the outputs.

        Return the seconds without admission; None if other jobs ran at the same time.
        """
        own: list[int] = []
        run = self._new_run(resident, sum(prompt.cost for prompt in prompts), lambda size, _: own.append(size))
        try:
            items = [Item.of(run, prompt) for prompt in prompts]
            with self._lock:
                alone, before, begun_s = not self._runs, self._batches, self._clock()
                self._begin(run, items)
            for _ in run.take(check):
                pass
            took_s = self._clock() - begun_s
            with self._lock:
                return took_s if alone and self._batches - before == len(own) else None
        finally:
            with self._lock:
                run.end()

    def _wake(self) -> None:
        with self._lock:
            self._work.notify()

    # The scheduler's side

    def _schedule(self) -> None:
        try:
            while items := self._next_items():
                self._serve(items)
                del items  # otherwise the batch stays on the device until the next batch comes
        except BaseException:
            # Without a scheduler every job would wait forever.
            self._lose(DeviceLost("the engine's scheduler failed"))
            log.exception("engine.scheduler_failed")

    def _serve(self, items: Sequence[Item]) -> None:
        resident = items[0].run.resident
        self._time.begin(at=time.monotonic())
        try:
            self._advance(items, resident)
        finally:
            self._time.end(at=time.monotonic())
            self._stepping = ()
            self._residency.release(resident)

    def _next_items(self) -> list[Item]:
        """Wait for prompts and remove the next batch from the queues; empty after the engine's end."""
        with self._lock:
            collect_until = time.monotonic() + COLLECT_S
            while not self._end_error():
                batch = compose(runs := list(self._runs), Bucket.limit)
                if batch is None:
                    # The device is idle: the next prompt goes at once.
                    collect_until = 0.0
                    self._work.wait()
                elif (left_s := collect_until - time.monotonic()) > 0 and self._may_grow(batch):
                    self._work.wait(left_s)
                else:
                    return self._take_batch(batch, runs)
            return []

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
        no_room = None
        try:
            steps = take_step(resident, items)
        except DeviceLost as error:
            self._lose(error)
        except OutOfMemory as error:
            no_room = error.detail
        except BaseException as error:
            self._isolate(items, resident, error, retry=retry)
        else:
            self._deliver(items, steps)
        if no_room is not None:
            # Outside the handler nothing refers to the error, whose frames hold the batch that did not fit.
            self._shrink(items, resident, no_room, retry=retry)

    def _deliver(self, items: Sequence[Item], steps: Sequence[Step]) -> None:
        """Give the runs of a batch their answers."""
        with self._lock:
            self._batch_sizes[items[0].run.resident.model.name] = len(items)
            for run, prompts in progressed(items, steps).items():
                run.report_batch(len(items), prompts)
            for item, step in zip(items, steps, strict=True):
                if isinstance(step, Done):
                    item.run.answer(item, step.output)
                else:
                    item.run.resume(item, step.state, step.partial)

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
        """Bisect a failed batch until the prompt that causes the error is alone, and end its run."""
        if len(items) == 1:
            ours = translated(error, resident.model, "neural network")
            with self._lock:
                items[0].drop()
                items[0].run.end(ours)
            return
        half = len(items) // 2
        for part in (items[:half], items[half:]):
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
