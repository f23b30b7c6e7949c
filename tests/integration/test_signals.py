"""Processes that are asked to end, again and again at once: they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from redis import Redis

from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

ROOT = Path(__file__).parents[2]
BURST = 20
AT_ONCE, ROUNDS = 3, 2
END_S = 60

#: A process' module, and the key that it makes in Redis when it listens.
LISTENING = {
    "keeper": ("tests.chaos.keeper_main", "penstock:keeper"),
    "worker": ("tests.chaos.worker_main", "_kombu.binding.penstock.default"),
}

#: Runs a module whose main thread gets a SIGTERM at every line of waiting for an event of ours, of setting and of
#: clearing one: also at those where it holds the event's lock.
INTERRUPTED = """
import runpy, signal, sys, threading

CODES = {getattr(threading.Event, name).__code__ for name in ("wait", "set", "clear")}

def interrupt(frame, event, _):
    if frame.f_code not in CODES or "penstock" not in frame.f_back.f_globals.get("__name__", ""):
        return None
    if event == "line" and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        signal.raise_signal(signal.SIGTERM)
    return interrupt

sys.settrace(interrupt)
runpy.run_module(sys.argv[1], run_name="__main__")
"""


@contextmanager
def launched(redis_url: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True)
    settings = {"REDIS_URL": redis_url, "DATA": str(folder), "SECRET": "s", "LOG_LEVEL": "info"}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    environment |= {f"PENSTOCK_{name}": value for name, value in settings.items()}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.breadth
@pytest.mark.slow
@pytest.mark.parametrize("round_", range(ROUNDS))
@pytest.mark.parametrize("name", list(LISTENING))
def test_a_burst_of_sigterms_ends_the(name: str, round_: int, valkey: ValkeyProcess, tmp_path: Path) -> None:  # noqa: ARG001
    module, key = LISTENING[name]
    folders = [tmp_path / str(number) for number in range(AT_ONCE)]
    with ExitStack() as stack, Redis.from_url(valkey.url) as client:
        processes = [stack.enter_context(launched(valkey.url, folder, "-m", module)) for folder in folders]
        wait_for(
            lambda: client.exists(key) and all(b"started" in (f / "log").read_bytes() for f in folders),
            "they do not start",
        )
        for process in processes:
            for _ in range(BURST):
                process.send_signal(signal.SIGTERM)
        for process in processes:
            # The last of them may come when Python has put the handlers away already.
            assert process.wait(END_S) in (0, -signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(LISTENING))
def test_a_sigterm_at_the_worst_moment_ends_the(name: str, valkey: ValkeyProcess, tmp_path: Path) -> None:
    module, key = LISTENING[name]
    with (
        launched(valkey.url, tmp_path / "data", "-c", INTERRUPTED, module) as process,
        Redis.from_url(valkey.url) as client,
    ):
        wait_for(lambda: process.poll() is not None or client.exists(key), "it does not start")
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) in (0, -signal.SIGTERM)
