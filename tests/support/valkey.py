"""A real Valkey for tests: the wheel's own server, on loopback, with the durability that production demands."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import BusyLoadingError, ConnectionError, TimeoutError  # noqa: A004  (redis names them so)
from redis.retry import Retry

from penstock.up.valkey import server_program

START_TIMEOUT_S = 20.0
PING_EVERY_S = 0.02


@dataclass
class ValkeyProcess:
    """A running server. `url` stays the same over `kill` and `restart`; its data lies in `folder`."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    #: Times in which the server did not answer, from its end to its answer after a restart.
    downs: list[tuple[float, float]] = field(default_factory=list)
    _ended_at_s: float = 0.0

    @property
    def url(self) -> str:
        """Return the address for clients."""
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
        self.downs.append((self._ended_at_s, time.time()))

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Stop the server inside the block (SIGSTOP): it accepts connections, and answers nothing."""
        begun_s = time.time()
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)
            _wait_until_answering(self)
            self.downs.append((begun_s, time.time()))

    def flush(self) -> None:
        """Forget all data."""
        with Redis.from_url(self.url) as client:
            client.flushall()

    def _end(self, end: Callable[[], None]) -> None:
        if self.process.poll() is None:
            self._ended_at_s = time.time()
            end()
        self.process.wait(START_TIMEOUT_S)


def start_valkey(folder: Path, *, wait: bool = True, at: int | None = None, **options: str) -> ValkeyProcess:
    """Start a server that keeps its data in `folder`; return when it answers, or at once without `wait`.

    `at` is its port, None = a free one. `options` are the server's, with `_` for `-`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port() if at is None else at
    server = ValkeyProcess(folder, port, _launch(folder, port, options))
    if wait:
        _wait_until_answering(server)
    return server


def free_port() -> int:
    """Return a port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _launch(folder: Path, port: int, more: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[bytes]:
    options = {
        "port": str(port),
        "bind": "127.0.0.1",
        "dir": str(folder),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    command = [str(server_program()), *(word for name, value in options.items() for word in (f"--{name}", value))]
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
