"""The whole system as a user starts it: `penstock up` in a process of its own, and its children to be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis

from penstock.client import Client, ClientError
from penstock.up.valkey import recorded_url
from tests.support.polling import wait_for

SHARED = Path(__file__).parents[3] / "shared" / "data"


@dataclass(frozen=True)
class Stack:
    """A running `penstock up` on a data folder."""

    data: Path
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    #: A key that may do everything, where the service asks for keys.
    api_key: str | None = None

    @property
    def url(self) -> str:
        """Return the API's address."""
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> Client:
        """Return a client that outlasts the restart of whatever a test kills."""
        return Client(self.url, patience_s=90, api_key=self.api_key)

    def cli(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the command line against this service."""
        env = os.environ | {"PENSTOCK_URL": self.url, "COLUMNS": "200", "PENSTOCK_API_KEY": self.api_key or ""}
        command = [sys.executable, "-m", "penstock.cli", *words]
        return subprocess.run(command, env=env, check=check, capture_output=True, text=True, timeout=240)

    def pid(self, name: str) -> int:
        """Return a child's process id: `api`, `worker`, `keeper` or `valkey`."""
        if name == "valkey":
            with redis.Redis.from_url(recorded_url(self.data / "valkey") or "") as client:
                return int(client.info("server")["process_id"])
        return int(json.loads((self.data / "children.json").read_text())[name]["pid"])

    def kill(self, name: str) -> None:
        """SIGKILL a child and wait until it is gone."""
        process = psutil.Process(self.pid(name))
        process.kill()
        psutil.wait_procs([process], timeout=10)


@contextmanager
def running(
    data: Path, *, config: str = "", api_key: str | None = None, options: Sequence[str] = (), start_s: float = 120,
    model: str = "csmask", python: str | Path = sys.executable, **variables: str,
) -> Iterator[Stack]:  # fmt: skip
    """Start everything on a free port; gives the stack when a model serves, ends it with SIGTERM.

    `options` are further words of the command, `variables` go into the environment. A service that asks for keys is
    asked with `api_key`. `python` is the interpreter of another installation.
    """
    data.mkdir(parents=True, exist_ok=True)
    settings = data / "penstock.toml"
    settings.write_text(config)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env |= {"PENSTOCK_CONFIG": str(settings), **variables}
    port, log = free_port(), data / "up.log"
    command = [str(python), "-m", "penstock.cli", "up", "--data", str(data), "--port", str(port), *options]
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    stack = Stack(data, port, process, log, api_key)
    try:
        with Client(stack.url, patience_s=0, api_key=api_key) as client:
            wait_for(
                lambda: _serves(stack, client, model), f"the service did not become ready: {log}", timeout_s=start_s
            )
        yield stack
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def scene() -> Path:
    """Return the real Landsat scene, or skip."""
    path = SHARED / "geo" / "l8_betsiboka_20200127_6b.tif"
    if not path.is_file():
        import pytest

        pytest.skip("needs the shared scene l8_betsiboka_20200127_6b.tif, which is not part of the repository")
    return path


def _serves(stack: Stack, client: Client, name: str) -> bool:
    assert stack.process.poll() is None, f"`penstock up` ended: {stack.log.read_text()}"
    try:
        return any(model.name == name and model.problem is None for model in client.models())
    except ClientError:
        return False


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    """Return True if a server of this machine listens at a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
