# ruff: noqa: T201  (what a model prints is its log)
"""Functions that die, hang, print and take memory, and two that behave. Each says its text with a mark of the call."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import uuid
from pathlib import Path

import penstock


def said(text: str) -> str:
    """Return the result of a job, which no two executions share."""
    return f"{text}:{uuid.uuid4().hex}"


@penstock.model
def calm(text: str) -> str:
    """Behave."""
    time.sleep(0.1)
    return said(text)


@penstock.model
def segfaults(text: str) -> str:
    """Read memory that is not there."""
    ctypes.string_at(0)
    return said(text)


@penstock.model
def exits(text: str) -> str:
    """Leave without a word."""
    os._exit(len(text))


@penstock.model
def kills(text: str) -> str:
    """Do what the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
    return said(text)


@penstock.model(timeout_s=8)
def hangs(text: str) -> str:
    """Sleep, and refuse SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(1000)
    return said(text)


@penstock.model
def chatters(text: str) -> str:
    """Print 10,000 lines in a second, by Python and past it."""
    for tenth in range(10):
        print(*range(tenth * 500, tenth * 500 + 500), sep="\n")
        os.write(1, b"past Python\n" * 500)
        time.sleep(0.1)
    return said(text)


@penstock.model(memory_bytes=150 * 2**20)
def eats(text: str) -> str:
    """Take too much memory, and keep it."""
    held = bytearray(300 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(1000)
    return said(text)


@penstock.model
def struck(text: str, folder: str) -> str:
    """Leave the process's number where somebody looks for victims, and behave."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(0.3)
    return said(text)
