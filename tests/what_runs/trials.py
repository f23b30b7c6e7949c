"""Runs trials of model types, each in a process of its own with a bound of memory and time."""

from __future__ import annotations

import os
import resource
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers

from penstock.workers.engine.transformers.tasks import Task
from tests.support.type_trials import TRIALS

MEMORY_BYTES = 10 * 2**30
TIME_S = 120

Outcome = list[str] | str


def tried(task: Task, kinds: Iterable[str]) -> Iterator[tuple[str, Outcome]]:
    """Yield each type with the ways that are equal to the library's, or the reason why none is."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for kind in kinds:
        yield kind, _in_child(task, kind)


def _in_child(task: Task, kind: str) -> Outcome:
    ours, theirs = get_context("fork").Pipe(duplex=False)
    child = get_context("fork").Process(target=_child, args=(task, kind, theirs))
    child.start()
    theirs.close()
    try:
        found: Outcome = ours.recv()
    except EOFError:
        found = ""
    child.join()
    if found:
        return found
    return (
        f"a tiny network of it takes more than {TIME_S} s"
        if child.exitcode == -signal.SIGALRM
        else "its trial ended the process"
    )


def _child(task: Task, kind: str, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.alarm(TIME_S)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        try:
            answer.send(TRIALS[task](kind, Path(folder)))
        except BaseException as error:  # whatever a network of any type raises
            if os.environ.get("TRIAL_TRACES"):
                traceback.print_exc()
            answer.send(_words(error))
    os._exit(0)


def _words(error: BaseException) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0] if said else ''}"
