"""Forward passes side by side on a CPU: the option `threads` of a model of the runner `torch`.

Two threads of one pass wait for each other after each layer. Passes of one thread each wait for nobody, and a prompt's
output does not depend on how many others are computed beside it (`docs/decisions/0112-performance.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from penstock.errors import ModelUnavailable
from penstock.models import Model

S = TypeVar("S")
D = TypeVar("D")


def threads_of(model: Model) -> int | None:
    """Return the option `threads` of a model, None without it; raise `ModelUnavailable` for what is no number."""
    threads = model.options.get("threads")
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
        raise ModelUnavailable(f"model {model.name!r}: options.threads is not a number of threads: {threads!r}")
    return threads


class Passes:
    """Threads that each run one pass at a time, with some threads of torch for each pass."""

    def __init__(self, threads: int, at_once: int) -> None:
        """Run `at_once` passes at a time."""
        self.at_once = at_once
        self._threads = threads
        self._pool = ThreadPoolExecutor(at_once, "torch-pass")

    @classmethod
    def of(cls, model: Model) -> Passes | None:
        """Return the passes of a model on a CPU; None without its option `threads`.

        As many passes run at once as the threads of this process allow. A compiled network has one: torch compiles a
        network in one thread at a time.
        """
        threads = threads_of(model)
        if threads is None:
            return None
        compiled = model.options.get("compile") is True
        return cls(threads, 1 if compiled else max(1, torch.get_num_threads() // threads))

    def run(self, step: Callable[[Sequence[S]], Sequence[D]], states: Sequence[S]) -> list[D]:
        """Return the answers of `step` to each state alone; raise the first error after all have ended.

        Call it in the thread in which the passes of other models run: a part of torch's number of threads (MKL's)
        belongs to the process, so that no other pass may run meanwhile.
        """
        others = torch.get_num_threads()
        try:
            passes = [self._pool.submit(self._pass, step, state) for state in states]
            wait(passes)
        finally:
            torch.set_num_threads(others)
        return [answer for each in passes for answer in each.result()]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()

    def _pass(self, step: Callable[[Sequence[S]], Sequence[D]], state: S) -> Sequence[D]:
        torch.set_num_threads(self._threads)
        return step([state])
