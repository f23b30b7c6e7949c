"""The processes of vLLM's engine end with the worker that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.workers.engine.vllm.orphans import MARK

#: A worker that starts an engine's process as vLLM does, says its number, and is killed.
WORKER = """
import multiprocessing, os, signal, sys

def engine(pipe):
    from penstock.workers.engine.vllm.orphans import end_with_parent
    end_with_parent()
    pipe.send(os.getpid())
    signal.pause()

if __name__ == "__main__":
    ours, its = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=engine, args=(its,), daemon=True).start()
    print(ours.recv(), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("marked", [True, False])
def test_an_engine_ends_with_its_killed_worker_and_nobody_elses_does(marked: bool, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    env = {name: value for name, value in os.environ.items() if name != MARK} | ({MARK: "1"} if marked else {})
    worker = subprocess.Popen(
        [sys.executable, script], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    engine = int(worker.stdout.readline())
    end = os.pidfd_open(engine)
    worker.kill()
    worker.wait()
    try:
        ended = bool(select.select([end], [], [], 20 if marked else 0.5)[0])
        assert ended == marked
    finally:
        if not marked:
            os.kill(engine, signal.SIGKILL)
        os.close(end)
        worker.stdin.close()
        worker.stdout.close()
