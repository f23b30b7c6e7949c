"""The interfaces of runners and of the engine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.catalogue.environments import Environments
from penstock.errors import PenstockError
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.io_signature import Offers
from penstock.processors.prompt_names import BESIDE, PIXELS, has_numbers
from penstock.workers.engine.memory import files_bytes

#: Files that are fetched from a repository of the hub: all but pickles, weights of other frameworks and images.
HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.toml", "*.pt2")


@dataclass(frozen=True, slots=True)
class Done:
    """A finished state."""

    output: Output


@dataclass(frozen=True, slots=True)
class Continue:
    """A state that needs another step (diffusion, generation)."""

    state: Any
    #: Everything so far, for followers of the job: an `Output` with `partial`.
    partial: Output | None = None
    #: Finished share of the prompt's work, from 0 to 1, for the job's progress.
    done: float = 0.0


Step = Done | Continue


def shapes_of(prompt: Prompt) -> Hashable:
    """Return the names in a prompt with shapes and dtypes, or types of plain data: the usual bucket of a runner.

    Tiles of files of any data type share a batch, however their scores are reduced: the network gets floats.
    """
    shapes = {name: getattr(value, "shape", None) for name, value in prompt.data.items() if name not in BESIDE}
    return tuple((name, shapes[name], dtype_of(prompt, name)) for name in sorted(shapes))


def dtype_of(prompt: Prompt, name: str) -> str:
    """Return the dtype or type of a value as the network gets it."""
    value = prompt.data[name]
    floats = name == PIXELS and has_numbers(prompt.data)
    return "float32" if floats else str(getattr(value, "dtype", type(value).__name__))


class Runner(Protocol):
    """A loaded model on a device.

    One-pass models finish after one step, diffusion models after n steps, text generation at the end token.
    """

    @property
    def max_batch(self) -> int:
        """The largest batch for `step`: the model's `max_batch`, or less where larger batches are not faster."""
        ...

    @property
    def memory_bytes(self) -> int:
        """The bytes of device memory that the model's weights take."""
        ...

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return a key; prompts with equal keys may share a batch: `shapes_of(prompt)`, or less if `step` pads.

        Called by the thread that called `admit` for the prompt, afterwards.
        """
        ...

    def admit(self, prompt: Prompt) -> Any:
        """Return the prompt's initial state; raise an error for a prompt that does not fit the model.

        `ProcessorFailed` for names, types and ranks, which the processor chose; `InvalidInput` for sizes of a job.

        Called by threads of several jobs at a time, while the device is busy: copies to the device belong here.
        """
        ...

    def step(self, states: Sequence[Any]) -> Sequence[Step]:
        """Advance a batch of states by one step and return a `Done` or `Continue` for each, in order.

        Called by the scheduler's thread only. The states' prompts have the same bucket; they may belong to different
        jobs and be at different steps. Raises `OutOfMemory` or `DeviceLost`. After any error but `DeviceLost` the
        states must still be valid: the engine steps them again in smaller batches.
        """
        ...

    def close(self) -> None:
        """Free the device's memory."""
        ...


@runtime_checkable
class TakesNumbers(Protocol):
    """A further property of a runner that normalises a file's own numbers on its device, and reduces its scores.

    Its `bucket` and `admit` get prompts as processors make them (see `processors.numbers` and `.reductions`). Any other
    runner gets normalised floats, which the engine makes of such prompts, and is not asked to reduce.
    """

    @property
    def takes_numbers(self) -> bool:
        """True if this runner does."""
        ...


@runtime_checkable
class Elsewhere(Protocol):
    """Further methods of a runner whose prompts another engine computes, in a server or a process of its own.

    A step begins requests and returns what has come of those that it began before: it never waits, so it delays no
    other model of the device. Begun states are stepped again when they are `awake`. The engine calls `free`, `awake`
    and `drop` with its lock held: they must neither wait nor call the function that `listen` got.
    """

    @property
    def free(self) -> int:
        """The number of prompts that may begin now; a step has no more states that did not begin."""
        ...

    def awake(self, state: Any) -> bool:
        """Return True if a step would get something new of a begun state."""
        ...

    def drop(self, state: Any) -> None:
        """End a state's request at once, if it has one: its job was canceled, failed, or lost its lease."""
        ...

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` from now on, from any thread, when `free` grows or a state awakes."""
        ...


@dataclass(frozen=True, slots=True)
class Stepped:
    """The answers of a runner that steps elsewhere to one batch."""

    #: A step of each state, in order; an error ends the run of its state alone.
    steps: Sequence[Step | PenstockError]
    #: Seconds that the step took.
    seconds: float


#: Batches that a process of a model has at a time: one that it works on, and one that is ready when that ends.
UNDER_WAY = 2


@runtime_checkable
class Queues(Protocol):
    """Further methods of a runner of one pass that steps in a process of its own, where a batch waits for the last one.

    The engine begins the next full batch while the process works on the last, so that the device waits for nobody.
    """

    def begin(self, states: Sequence[Any], wanted: Callable[[], bool]) -> Future[Stepped]:
        """Step a batch after those that began before it; never wait.

        The future has the errors of `step`, and `ModelProcessEnded`: then each prompt is tried alone. `wanted` returns
        False when no job waits for the batch any more.
        """
        ...


@dataclass(frozen=True, slots=True)
class Hosting:
    """A model of one pass that can run in a process of its own."""

    #: Names of plain values that all prompts of a batch have in common, beside their shapes (`shapes_of`).
    shared: tuple[str, ...] = ()
    #: Name of an array whose prompts share a batch whatever their shapes; empty: there is none.
    of_any_shape: str = ""
    #: True: the library needs more sockets than those of the kernel's own files, as for processes of its own.
    network: bool = False


#: Loads a model's weights and returns its runner, or raises `ModelUnavailable`.
RunnerFactory = Callable[[Model], Runner]

#: Checks a model's files and options without reading its weights; raises `ModelUnavailable` as its factory would.
RunnerCheck = Callable[[Model], object]


@dataclass(frozen=True, slots=True)
class RunnerSpec:
    """A runner as its entry point in the group `penstock.runners` names it.

    The module of an entry point is light: `load` and `check` import the libraries that the runner needs.
    """

    load: RunnerFactory
    #: None: a model is checked by loading it.
    check: RunnerCheck | None = None
    #: Imports what `load` needs for a model, without its weights and without touching a device.
    imports: Callable[[Model], object] = lambda _model: None
    #: Estimates the bytes of memory that a model will take, from its files and without raising; 0: unknown.
    expected_bytes: Callable[[Model], int] = files_bytes
    #: Glob patterns of the files that a model needs of its repository on the hub.
    hub_files: Callable[[Model], Sequence[str]] = lambda _model: HUB_FILES
    #: True: a server computes, which the model's `source` names. The model has no files, and `check` asks the server.
    served: bool = False
    #: True: a load cannot end the worker, because another process loads the model, or nothing is loaded. Models of
    #: other runners are first loaded in a process of their own.
    loads_safely: bool = False
    #: True: `check` imports a library for many seconds. It is asked in a process that does it for all such models.
    checks_apart: bool = False
    #: True for a model for which `load` starts a program of the model's environment itself.
    starts_program: Callable[[Model], bool] = lambda _model: False
    #: Returns a model's record with its environment; builds it if the argument is True. Raises `ModelUnavailable`.
    with_environment: Callable[[Model, Environments, bool], Model] = lambda model, environments, build: (
        environments.with_environment(model, build=build)
    )
    #: The values that prompts and outputs have, by kind of model: a model serves a processor whose signatures fit one
    #: kind. None: not declared; the warm-up decides if a model's processor can work with this runner.
    io_signatures: Offers | None = None
    #: The signatures of one model, from its options and small files and without the runner's libraries; None: those of
    #: `io_signatures`. An error counts as None: `check` and `load` report it.
    io_signatures_of: Callable[[Model], Offers | None] = lambda _model: None
    #: The way in which a model runs in a process of its own; None: it runs inside the worker. For runners whose
    #: `bucket` depends on shapes and plain values only, and whose prompts end after one step.
    hosting: Callable[[Model], Hosting | None] = lambda _model: None


#: Called often by threads that wait on a job's behalf; raises an `Interruption` when the job must stop.
Check = Callable[[], None]

#: Called after each batch with its number of prompts, of all jobs, and the number of the run's own prompts that it
#: finished, with fractions for prompts of many steps. The scheduler's thread calls it: it must only count.
OnBatch = Callable[[int, float], None]

#: Called after each step with the seconds of the device that are a run's own: a batch's time is shared out over its
#: prompts by their costs. Also for steps that failed. The scheduler's thread calls it: it must only count.
OnDevice = Callable[[float], None]


class Engine(Protocol):
    """Runs the prompts of many jobs at once."""

    @property
    def lost(self) -> bool:
        """True once the device stopped working: every run fails from then on and the process should be replaced."""
        ...

    def load(self, model: Model, *, check: Check) -> float:
        """Load a model unless it is loaded; return the seconds that its latest loading took."""
        ...

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
        """Yield one output per prompt, in order, drawing prompts ahead within a bounded number of bytes.

        Partial outputs of a prompt come before its output, and only after the outputs of all earlier prompts; a slow
        caller gets the latest partial output alone.

        `cost` is the sum of the prompts' costs, if known: where a batch has room for one of two jobs, the job with less
        cost left goes first. `on_batch` is called for each batch that had prompts of this run, and
        `on_device` for each step with such prompts.
        A thread of the engine draws the prompts; the caller's draws them all at once where they are `ready`: few and in
        memory, or only one. A yielded prompt's arrays belong to the engine: nobody may write to
        them afterwards. The caller's thread calls `check`, between outputs and while waiting for one. An error of one
        prompt is raised here and nowhere else. When the iterator has ended, raised or been closed, the run has no
        state left and the iterator of prompts is closed.
        """
        ...

    def fill(self, model: Model, prompt: Prompt, *, check: Check) -> int:
        """Return how many copies of a prompt fit into a batch: at most the model's limits, at least 1.

        Copies are run to find the number, unless it is 1. Later batches of such prompts are no larger.
        """
        ...

    def close(self) -> None:
        """Stop the scheduler and free the device; runs that have not ended raise `Drained`."""
        ...
