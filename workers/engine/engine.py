"""The engine: job threads hand in prompts, one scheduler thread composes batches for the device.

Three kinds of threads meet at one lock. A job's thread takes outputs; its feeder draws and admits prompts ahead, so
that decoding overlaps with the forward pass; the scheduler alone steps the runners. Nothing that takes long happens
under the lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from traceback import format_exception
from typing import assert_never

import structlog

from penstock.errors import DeviceLost, Drained, OutOfMemory, PenstockError, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.batching import Batch, Pick, compose
from penstock.workers.engine.base import Check, Continue, Done, OnBatch, RunnerFactory, Step
from penstock.workers.engine.memory import budget_bytes
from penstock.workers.engine.residency import Residency, Resident
from penstock.workers.engine.runs import Bucket, Item, Run, Window

log = structlog.get_logger(__name__)

#: How long a device that just finished a batch waits for prompts that are being drawn, to fill the next one.
COLLECT_S = 0.003
#: How long a thread may take until it runs.
BEGIN_S = 1.0


class BatchingEngine:
    """An `Engine` for one device. Needs no start; ends with `close`."""

    def __init__(
        self,
        factories: Mapping[str, RunnerFactory],
        *,
        max_models: int = 16,
        memory_bytes: int | None = None,
        ahead_prompts: int = 4,
        ahead_bytes: int = 256 * 2**20,
    ) -> None:
        """Take the runners by name.

        `memory_bytes` is what the weights of loaded models may take together (None = most of the device's memory).
        `ahead_*` bound what one run may hold in memory beside its largest prompt.
        A run may always draw two batches' worth of prompts ahead, if their bytes allow.
        """
        budget = (lambda: memory_bytes) if memory_bytes is not None else budget_bytes
        self._residency = Residency(factories, max_models=max_models, budget_bytes=budget)
        self._ahead = Window(ahead_prompts, ahead_bytes)
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._runs: list[Run] = []
        #: How many batches there were.
        self._batches = 0
        #: By model, how many prompts shared its latest batch.
        self._batch_sizes: dict[str, int] = {}
        #: What the device is working on.
        self._stepping: Sequence[Item] = ()
        self._loss: DeviceLost | None = None
        self._closed = False
        self._scheduler = threading.Thread(target=self._schedule, name="engine-scheduler", daemon=True)
        self._scheduler.start()

    @property
    def lost(self) -> bool:
        """Whether the device stopped working: every run fails from now on and the process should be replaced."""
        return self._loss is not None

    def stuck_s(self) -> float:
        """Return for how long the device has been working on a batch that nobody waits for any more."""
        with self._lock:
            last = max((item.run.over_s for item in self._stepping), default=inf)
        return max(0.0, time.monotonic() - last)

    def loaded(self) -> frozenset[str]:
        """Return the names of the models whose weights are on the device."""
        return self._residency.names()

    def batch_sizes(self) -> dict[str, int]:
        """Return for each model that has run how many prompts shared its latest batch."""
        with self._lock:
            return dict(self._batch_sizes)

    def kept_bytes(self) -> dict[str, int]:
        """Return for each loaded model with a cache of encodings what they take."""
        return self._residency.kept_bytes()

    def load(self, model: Model, *, check: Check) -> float:
        """Load a model unless it is resident; return the seconds its loading took when it was last loaded."""
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
    ) -> Generator[Output]:
        """Yield one output per prompt, in order; see `Engine.run`.

        Raises what drawing or checking raised, the prompt's own error, `ModelUnavailable`, `OutOfMemory`, `DeviceLost`
        or, for an error that is not Penstock's, `ProcessorFailed`. Leaving early takes as long as drawing one prompt.
        """
        check = self._guarded(check)
        with self._using(model, check) as resident:
            run = self._open(resident, inf if cost is None else cost, on_batch)
            begun = threading.Event()
            feeder = threading.Thread(
                target=self._feed, args=(run, prompts, begun), daemon=True, name=f"feed-{model.name}"
            )
            try:
                feeder.start()
                yield from run.take(check)
            except ProcessorFailed as error:
                _log_cause(model, error)
                raise
            finally:
                self._end(run)
                begun.wait(BEGIN_S)  # Ctrl-C may end `start` while the thread begins, and it has the prompts
                if feeder.is_alive():
                    feeder.join()

    def fill(self, model: Model, prompt: Prompt, *, check: Check) -> int:
        """Find out how many copies of a prompt share a batch, by running them; see `Engine.fill`."""
        check = self._guarded(check)
        with self._using(model, check) as resident:
            bucket = Bucket.of(resident, prompt)
            while (copies := bucket.limit().copies(prompt.cost)) > 1:
                try:
                    self._run_at_once(resident, [prompt] * copies, check)
                except OutOfMemory:
                    bucket.reduce(min(bucket.limit().prompts, copies // 2))
                else:
                    return min(copies, bucket.limit().prompts)
            return 1

    def close(self, *, timeout_s: float = 10) -> None:
        """Stop the scheduler and free the device; runs that are still going raise `Drained`.

        A device that does not finish its step in time is left as it is.
        """
        with self._lock:
            self._closed = True
            for run in self._runs:
                run.end(Drained())
            self._runs.clear()
            self._work.notify_all()
        self._scheduler.join(timeout_s)
        if self._scheduler.is_alive():
            log.error("engine.busy_at_close", timeout_s=timeout_s)
        else:
            self._residency.close()

    def _guarded(self, check: Check) -> Check:
        def guarded() -> None:
            check()
            if ended := self._ended():
                raise ended

        return guarded

    def _ended(self) -> PenstockError | None:
        """Return why nothing runs here any more."""
        if self._loss:
            return DeviceLost(self._loss.detail)
        return Drained() if self._closed else None

    @contextmanager
    def _using(self, model: Model, check: Check) -> Iterator[Resident]:
        try:
            with self._residency.using(model, check) as resident:
                yield resident
        except DeviceLost as error:
            # Seen while loading or copying: the scheduler may not have met it yet.
            self._lose(error)
            raise

    # The feeder's side

    def _open(self, resident: Resident, cost: float, on_batch: OnBatch | None = None) -> Run:
        prompts = max(self._ahead.prompts, 2 * resident.runner.max_batch)
        ready, room = threading.Condition(self._lock), threading.Condition(self._lock)
        run = Run(resident, Window(prompts, self._ahead.bytes), ready, room, left=cost, on_batch=on_batch)
        with self._lock:
            run.turn = (self._batches, -1)
            if ended := self._ended():
                run.end(ended)
            else:
                self._runs.append(run)
        return run

    def _feed(self, run: Run, prompts: Iterator[Prompt], begun: threading.Event) -> None:
        begun.set()
        error = None
        try:
            self._draw(run, prompts)
        except BaseException as raised:
            error = _translated(raised, run.resident.model, "preparation")
        finally:
            _close(prompts)
        with self._lock:
            if error:
                self._fail(run, error)
            run.finish()

    def _draw(self, run: Run, prompts: Iterator[Prompt]) -> None:
        while run.wait_for_room():
            prompt = next(prompts, None)
            if prompt is None:
                return
            item = Item.of(run, prompt, run.resident.runner.admit(prompt))
            with self._lock:
                run.add(item)
                self._work.notify_all()

    def _run_at_once(self, resident: Resident, prompts: Sequence[Prompt], check: Check) -> None:
        """Hand in prompts together, so that they share a batch; drop the outputs."""
        run = self._open(resident, sum(prompt.cost for prompt in prompts))
        try:
            items = [Item.of(run, prompt, resident.runner.admit(prompt)) for prompt in prompts]
            with self._lock:
                for item in items:
                    run.add(item)
                run.finish()
                self._work.notify_all()
            for _ in run.take(check):
                pass
        finally:
            self._end(run)

    def _end(self, run: Run) -> None:
        with self._lock:
            self._fail(run, None)

    def _fail(self, run: Run, error: PenstockError | None) -> None:
        """End a run. The lock must be held."""
        run.end(error)
        if run in self._runs:
            self._runs.remove(run)

    # The scheduler's side

    def _schedule(self) -> None:
        try:
            while items := self._next_items():
                resident = items[0].run.resident
                try:
                    self._advance(items, resident)
                finally:
                    self._stepping = ()
                    items.clear()  # ended runs' states go now, not with the next batch
                    self._residency.release(resident)
        except BaseException:
            # Without a scheduler every job would wait for ever.
            self._lose(DeviceLost("the engine's scheduler failed"))
            log.exception("engine.scheduler_failed")

    def _next_items(self) -> list[Item]:
        """Wait for work and take a batch of it out of the queues; empty when there will be no more."""
        with self._lock:
            collect_until = time.monotonic() + COLLECT_S
            while not self._ended():
                batch = compose(self._runs, Bucket.limit)
                if batch is None:
                    # The device is idle: the first prompt that comes goes at once.
                    collect_until = 0.0
                    self._work.wait()
                elif (left_s := collect_until - time.monotonic()) > 0 and self._may_grow(batch):
                    self._work.wait(left_s)
                else:
                    return self._take(batch)
            return []

    def _may_grow(self, batch: Batch[Bucket]) -> bool:
        """Whether waiting could fill the batch. Prompts between two of their steps are not kept waiting."""
        if batch.full or any(self._picked(pick).begun for pick in batch.picks):
            return False
        return any(run.resident is batch.bucket.resident and run.wants_prompts for run in self._runs)

    def _picked(self, pick: Pick) -> Item:
        return self._runs[pick.queue].waiting[pick.position]

    def _take(self, batch: Batch[Bucket]) -> list[Item]:
        items = [self._picked(pick) for pick in batch.picks]
        self._batches += 1
        for place, item in enumerate(items):
            item.run.waiting.remove(item)
            item.run.turn = (self._batches, place)
        # Held until the step is over, even if every job of the batch ends meanwhile.
        self._residency.hold(items[0].run.resident)
        return items

    def _advance(self, items: Sequence[Item], resident: Resident, *, retry: bool = True) -> None:
        with self._lock:
            items = [item for item in items if not item.run.over]
            self._stepping = items
        if not items:
            return
        try:
            steps = _step(resident, items)
        except DeviceLost as error:
            self._lose(error)
        except OutOfMemory as error:
            self._shrink(items, resident, error, retry=retry)
        except BaseException as error:
            self._isolate(items, resident, error, retry=retry)
        else:
            self._deliver(items, steps)

    def _deliver(self, items: Sequence[Item], steps: Sequence[Step]) -> None:
        with self._lock:
            self._batch_sizes[items[0].run.resident.model.name] = len(items)
            further = dict.fromkeys((item.run for item in items), 0.0)
            for item, step in zip(items, steps, strict=True):
                further[item.run] += item.reach(1.0 if isinstance(step, Done) else step.done)
            for run, prompts in further.items():
                run.shared(len(items), prompts)
            for item, step in zip(items, steps, strict=True):
                match step:
                    case Done(output):
                        item.run.answer(item, output)
                    case Continue(state, partial):
                        item.run.resume(item, state, partial)
                    case _:
                        assert_never(step)

    def _shrink(self, items: Sequence[Item], resident: Resident, error: OutOfMemory, *, retry: bool) -> None:
        """Halve the bucket's batches from now on and try once more with the halves."""
        half = len(items) // 2
        log.warning("engine.out_of_memory", model=resident.model.name, batch=len(items), retry=bool(half and retry))
        with self._lock:
            items[0].bucket.reduce(max(1, half))
            if not half or not retry:
                for item in items:
                    self._fail(item.run, OutOfMemory(error.detail))
                return
        for part in (items[:half], items[half:]):
            self._advance(part, resident, retry=False)

    def _isolate(self, items: Sequence[Item], resident: Resident, error: BaseException, *, retry: bool) -> None:
        """Fail the one prompt that is to blame: bisect until it is alone."""
        if len(items) == 1:
            ours = _translated(error, resident.model, "network")
            with self._lock:
                self._fail(items[0].run, ours)
            return
        half = len(items) // 2
        for part in (items[:half], items[half:]):
            self._advance(part, resident, retry=retry)

    def _lose(self, error: DeviceLost) -> None:
        with self._lock:
            if self._loss:
                return
            self._loss = error
            for run in self._runs:
                run.end(DeviceLost(error.detail))
            self._runs.clear()
            self._work.notify_all()
        log.error("engine.device_lost", detail=error.detail)


def _step(resident: Resident, items: Sequence[Item]) -> Sequence[Step]:
    steps = resident.runner.step([item.state for item in items])
    if len(steps) != len(items) or not all(map(_well_formed, steps)):
        raise ProcessorFailed(f"the runner of model {resident.model.name!r} did not answer every prompt of its batch")
    return steps


def _well_formed(step: object) -> bool:
    match step:
        case Done(output):
            return isinstance(output, Output) and not output.partial
        case Continue(_, partial):
            return partial is None or (isinstance(partial, Output) and partial.partial)
        case _:
            return False


def _translated(error: BaseException, model: Model, part: str) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    failure = ProcessorFailed(f"the {part} of model {model.name!r} failed on this input ({type(error).__name__})")
    failure.__cause__ = error
    return failure


def _log_cause(model: Model, failure: ProcessorFailed) -> None:
    """Log what the caller is not told. In the job's thread and as text: the scheduler renders no tracebacks."""
    if failure.__cause__ is not None:
        text = "".join(format_exception(failure.__cause__))
        log.error("engine.foreign_error", model=model.name, detail=failure.detail, traceback=text)


def _close(prompts: Iterator[Prompt]) -> None:
    """Close a generator, so that it lets go of its files before its job goes on."""
    close: Callable[[], None] | None = getattr(prompts, "close", None)
    try:
        if close is not None:
            close()
    except Exception:
        log.exception("engine.prompts_not_closed")
