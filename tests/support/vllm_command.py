"""A double of the command `vllm`, for tests where vLLM is not: `vllm serve` that echoes, beside an engine to be killed.

With `--hang-from N` the Nth server and all later ones hang instead of serving.
As vLLM's, the server calls Penstock's entry point when it starts, answers requests with an error when its engine dies,
and ends then. `tests/vllm/` runs the same code with vLLM itself.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.workers.engine.vllm.orphans import end_with_parent
from tests.support.openai_server import Connection, FakeServer, echo

ROOT = Path(__file__).parents[2]
#: A prompt that is computed until the engine ends.
LONG = "long"
#: A prompt that fails: the answer is 500 and its connection is over, as after an error that vLLM did not expect.
FAILS = "fails"
#: Words of each server that was started, a line of JSON each.
STARTED = "PENSTOCKS_DOUBLE_STARTED"


@contextmanager
def vllm_command(folder: Path, python: Path = Path(sys.executable)) -> Any:
    """Have this process and its children find the double as `vllm`; yields the file with the words of its starts.

    `python` is the interpreter that runs it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command, started = folder / "vllm", folder / "started"
    command.write_text(
        f'#!{python}\nfrom tests.support.vllm_command import serve\nif __name__ == "__main__":\n    serve()\n'
    )
    command.chmod(0o755)
    started.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setenv("PYTHONPATH", str(ROOT), prepend=":")
        patch.setenv(STARTED, str(started))
        yield started


def serve() -> None:
    """Serve until the engine or the worker ends, or a signal comes."""
    end_with_parent()
    words = sys.argv[1:]
    with Path(os.environ[STARTED]).open("a") as file:
        file.write(f"{' '.join(words)}\n")
    if "--not-known" in words:
        sys.exit("usage: vllm serve\nvllm serve: error: unrecognized arguments: --not-known")
    engine = multiprocessing.get_context("spawn").Process(target=_compute, daemon=True)
    engine.start()
    if "--hang-from" in words and _starts() >= int(words[words.index("--hang-from") + 1]):
        sys.stdout.write("Loading weights ...\n")
        sys.stdout.flush()
        signal.pause()
    dead = threading.Event()
    with FakeServer(socket=Path(words[words.index("--uds") + 1])) as server:
        server.behaviour = lambda: lambda connection: _answer(connection, dead)  # type: ignore[method-assign]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        engine.join()
        server.is_ill = True
        dead.set()
        server.wait_for_active(0)
    sys.exit(1)


def _starts() -> int:
    return len(Path(os.environ[STARTED]).read_text().splitlines())


def _compute() -> None:
    end_with_parent()
    signal.pause()


def _answer(connection: Connection, dead: threading.Event) -> None:
    if connection.path.endswith("/chat/completions") and connection.asked == FAILS:
        connection.is_over = True
        connection.answer(500, {"error": {"message": "Error in WAV file", "code": 500}})
        return
    if connection.path.endswith("/embeddings") or connection.asked != LONG:
        echo(connection)
        return
    connection.begin()
    connection.chunk(content=LONG)
    connection.wait(dead)
    connection.send({"error": {"message": "EngineCore encountered an issue", "code": 500}})
    connection.end()
