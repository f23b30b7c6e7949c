"""The engine: job threads submit prompts, one scheduler thread composes batches for the device.

Three kinds of threads share one lock. A job's thread takes outputs; the job's feeder draws and admits prompts ahead, so
that decoding overlaps with the forward pass; only the scheduler steps the runners. The lock is held for short moments.
Batches of a model in a process of its own are under way meanwhile; the scheduler takes their answers.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import structlog

from penstock.errors import DeviceLost, Drained, OutOfMemory, ProcessorFailed
from penstock.models import Model
from penstock.observation.listening import listener, listening
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Check, OnBatch, OnDevice
from penstock.workers.engine.memory import budget_bytes
from penstock.workers.engine.residency import Load, Residency, Resident
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.runs import Bucket, Item, Run, Window
from penstock.workers.engine.scheduler import Scheduler
from penstock.workers.engine.steps import Feeder, admitted, close_prompts, log_cause, translated

log = structlog.get_logger(__name__)


class BatchingEngine(Scheduler):
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
    ) -> None:
        """Create an engine with these runners and start its scheduler.

        `memory_bytes` limits the weights of all loaded models (None = most of the device's memory, divided by the
        processes that share it, `sharers`). `ahead_prompts` and `ahead_bytes` limit the prompts and outputs that
        one run holds in memory beside its largest prompt. A run may draw two batches of prompts ahead even if
        `ahead_prompts` is smaller; `ahead_bytes` still applies.
        `load` loads a model (None = by its runner).
        """
        budget = (lambda: memory_bytes) if memory_bytes is not None else partial(budget_bytes, sharers)
        super().__init__(Residency(runners, max_models=max_models, budget_bytes=budget, load=load))
        self._ahead = Window(ahead_prompts, ahead_bytes)
        self._scheduler = threading.Thread(target=self._schedule, name="engine-scheduler", daemon=True)
        self._scheduler.start()

    def loaded(self) -> frozenset[str]:
        """Return the names of the loaded models."""
        return self._residency.names()

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
        prompts = max(self._ahead.prompts, (3 if resident.queues else 2) * resident.runner.max_batch)
        if resident.elsewhere is not None:
            resident.elsewhere.listen(self._wake)
        return Run(
            resident, Window(prompts, self._ahead.bytes), self._lock, self._runs, left=cost,
            on_batch=on_batch, on_device=on_device, listener=listener(),
        )  # fmt: skip

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
                self._notify(run)
                going = run.wait_for_room()

    def _run_at_once(self, resident: Resident, prompts: Sequence[Prompt], check: Check) -> None:
        """Submit prompts together as one batch, and drop the outputs."""
        run = self._new_run(resident, sum(prompt.cost for prompt in prompts))
        try:
            items = [Item.of(run, prompt) for prompt in prompts]
            with self._lock:
                self._begin(run, items)
            for _ in run.take(check):
                pass
        finally:
            with self._lock:
                run.end()
