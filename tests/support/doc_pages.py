"""Runs the commands and programs of a page, in order, on files that the page or the test makes."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.polling import wait_for
from tests.support.stack import free_port

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "howto"

#: Libraries that `infra/clients-env.sh` installs, and its interpreter.
ELSEWHERE = {"runpod", "skl2onnx", "sklearn"}
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"

#: ``` with a language, and for a file of the page its name: ```toml title="models.toml". What is `bash` or `python` is
#: run, an excerpt is `py`.
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A piece of code in a page."""

    language: str
    title: str
    code: str


def blocks(page: str) -> list[Block]:
    """Return a page's pieces of code, in order."""
    return [Block(*found.groups(default="")) for found in _BLOCK.finditer((PAGES / page).read_text())]


class Shell:
    """Runs a page's pieces in one folder; `penstock up` stays until the end."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        port = str(free_port())
        # Nor the settings of GDAL that this process made for itself.
        others = ("PENSTOCK_", "GDAL_", "VRT_", "CPL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        here = {"PENSTOCK_PORT": port, "PENSTOCK_URL": f"http://127.0.0.1:{port}", "COLUMNS": "200"}
        self.env = {**kept, **here, "PATH": path, **env}
        self._running = ExitStack()

    def take(self, block: Block) -> None:
        """Write a file, or run a piece and fail with what it said."""
        if block.title:
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code)
        elif block.code == "penstock up\n":
            self._running.enter_context(self._service())
        elif block.language in ("bash", "python"):
            command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [_python_of(block), "-c"]
            done = subprocess.run(
                [*command, block.code], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=240,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert done.returncode == 0, f"{block.code}\n{done.stdout}{done.stderr}"

    def close(self) -> None:
        """End what runs."""
        self._running.close()

    @contextmanager
    def _service(self) -> Iterator[None]:
        log = self.folder / "up.log"
        with log.open("wb") as out:
            process = subprocess.Popen(["penstock", "up"], cwd=self.folder, env=self.env, stdout=out, stderr=out)
        try:
            wait_for(lambda: self._ready(process), f"the service did not become ready: {log}")
            yield
        finally:
            process.terminate()
            process.wait(60)

    def _ready(self, process: subprocess.Popen[bytes]) -> bool:
        said = (self.folder / "up.log").read_text()
        assert process.poll() is None, said
        return "\nready " in said


def _python_of(block: Block) -> str:
    """Return the interpreter of a program: that of the libraries in an environment of their own, where it needs one."""
    if not ELSEWHERE & imports(block.code):
        return sys.executable
    if not CLIENTS.exists():
        reason = "needs libraries of other projects: make .venv-clients/.ready"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return str(CLIENTS)


def imports(code: str) -> set[str]:
    """Return the packages that a program imports, by the names of their modules."""
    found = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom))
    names = (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in found)
    return {name.partition(".")[0] for name in names}


def end_receiver(folder: Path, name: str = "receiver.pid") -> None:
    """End the page's receiver where the page did not come to do so."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((folder / name).read_text()), signal.SIGTERM)


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return sha256(path.read_bytes()).hexdigest()
