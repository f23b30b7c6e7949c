"""`penstock up`: the whole system on one machine, kept running by one supervisor.

data/up.lock            held while a supervisor runs: one per data folder
data/children.json      what it started, so that the next one ends what outlived it
data/valkey/            the embedded Valkey's log and address; it outlives the supervisor
data/objects/           the local object store
data/secret             signs the local store's links and the API keys
data/logs/*.log         what each process says

The folders that it makes are the operator's own (0700). Those that are there already stay as they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel, SecretStr

from penstock.children import Child, Ledger, Say, Supervisor
from penstock.config import Settings, require_safe_access
from penstock.drop_rules import require_own_outputs
from penstock.errors import ConfigError, PenstockError
from penstock.keys import load_or_create_secret
from penstock.models import read_catalogue
from penstock.signals import LOOK_EVERY_S, Signals
from penstock.storage.api_keys import list_keys
from penstock.storage.catalogues import CHECKING, catalogue
from penstock.storage.checks import require_durable_redis
from penstock.storage.objects import open_store
from penstock.storage.scripts import JobStore
from penstock.valkey import Valkey

#: Beside `drain_s`: what a worker needs to give its jobs back and to leave.
WORKER_STOP_S = 20.0
STOP_S = 10.0
_LOOK_READY_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Role:
    """A process of ours: its name and the command that runs it."""

    name: str
    command: tuple[str, ...]
    stop_s: float = STOP_S


def our_roles(settings: Settings) -> tuple[Role, ...]:
    """Return the API, the keeper and the worker, in the order of their start."""
    run = (sys.executable, "-m", "penstock.cli")
    parent = ("--supervisor", str(os.getpid()))
    return (
        Role("api", (*run, "api", *parent)),
        Role("keeper", (*run, "keeper", *parent)),
        Role("worker", (*run, "worker", *parent), settings.drain_s + WORKER_STOP_S),
    )


def up(settings: Settings, say: Say, *, roles: Callable[[Settings], Sequence[Role]] = our_roles) -> int:
    """Run everything until SIGINT or SIGTERM and return the exit code; `say` is told (who, what).

    Raises `ConfigError` before anything was started where something is in the way.
    """
    check(settings)
    data = settings.data.resolve()
    with _only_one(data), Signals() as signals:
        ledger = Ledger(data / "children.json")
        for name in ledger.end_stale(settings.drain_s + STOP_S):
            say(name, "ended: an earlier supervisor had left it running")
        settings = _completed(settings, data)
        _make_private(*_folders(settings, data))
        supervisor = Supervisor(say)
        try:
            settings = _start_redis(settings, supervisor, say)
            say("store", settings.store_url)
            say("access", _access(settings))
            for wrong in read_catalogue(*settings.models).wrong.values():
                say("models", f"{wrong.name} cannot be used: {wrong.problem}")
            for role in roles(settings):
                log = data / "logs" / f"{role.name}.log"
                env = {**os.environ, **environment(settings)}
                child = Child(role.name, role.command, env=env, log=log, ledger=ledger, stop_s=role.stop_s)
                supervisor.start(child)
                say(role.name, f"process {child.pid}, log in {log}")
            _keep(settings, supervisor, signals, say)
        finally:
            say("up", "ending in order; Ctrl-C again ends it at once")
            supervisor.stop(hurry=signals.twice)
            ledger.forget()
    return 0


def check(settings: Settings) -> None:
    """Raise `ConfigError` for what one of the processes would refuse at its start, again and again."""
    require_safe_access(settings)
    require_own_outputs(settings.drops)
    read_catalogue(*settings.models)


def environment(settings: Settings) -> dict[str, str]:
    """Return the `PENSTOCK_*` variables from which `load_settings` makes these settings again."""
    found = {f"PENSTOCK_{name.upper()}": _text(value) for name, value in settings if value is not None}
    return {name: text for name, text in found.items() if text is not None}


def _text(value: Any) -> str | None:
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return {name: _plain(part) for name, part in value if part is not None}
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Path) else value


def _completed(settings: Settings, data: Path) -> Settings:
    port = _free_port(settings.host, settings.port)
    secret = settings.secret or SecretStr(load_or_create_secret(data / "secret"))
    return settings.model_copy(update={"data": data, "port": port, "secret": secret})


def _start_redis(settings: Settings, supervisor: Supervisor, say: Say) -> Settings:
    if settings.redis_url is None:
        valkey = Valkey(settings.data / "valkey", settings.data / "logs" / "valkey.log")
        supervisor.start(valkey)
        how = "was still running" if valkey.attached else "started"
        say("valkey", f"{valkey.version()} {how} at {valkey.url}, data in {valkey.folder}")
        settings = settings.model_copy(update={"redis_url": valkey.url})
    else:
        say("redis", "the one of redis_url")
    require_durable_redis(settings)
    return settings


def _access(settings: Settings) -> str:
    """Return who may ask, in a sentence for the operator."""
    if settings.with_keys:
        return "API keys are asked for: see `penstock keys`"
    return "OPEN: no API keys; everybody on this machine is the tenant default (`penstock up --keys` asks for keys)"


def _tell_of_keys(settings: Settings, say: Say) -> None:
    """Say that nobody can get in yet."""
    found = list_keys(open_store(settings.store_url, settings))
    with contextlib.suppress(PenstockError):
        if settings.with_keys and not any(record.state(at=time.time()) == "active" for record in found):
            say("access", f"there is no key yet: `penstock keys create --data {settings.data}` makes one")


def _keep(settings: Settings, supervisor: Supervisor, signals: Signals, say: Say) -> None:
    ready, look_at = False, 0.0
    with contextlib.closing(JobStore.open(settings.redis_address)) as store:
        while not signals.once():
            supervisor.tick()
            if not ready and time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_READY_EVERY_S
                ready = _is_ready(settings, store)
                if ready:
                    say("ready", f"{settings.base_url} (documentation at {settings.base_url}/docs); Ctrl-C ends it")
                    _tell_of_keys(settings, say)
            time.sleep(LOOK_EVERY_S)


def _is_ready(settings: Settings, store: JobStore) -> bool:
    """Whether the API accepts jobs and a worker has checked its models."""
    here = f"http://{_in_url(settings.host)}:{settings.port}"
    try:
        with httpx.Client(base_url=here, trust_env=False, timeout=1.0) as http:
            if not http.get("/readyz").is_success:
                return False
        models = store.run(catalogue()).values()  # the API's own answer may need a key
    except (httpx.HTTPError, PenstockError):
        return False
    return bool(models) and all(model.problem != CHECKING for model in models)


@contextlib.contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """Hold the data folder's lock; `ConfigError` if another supervisor does."""
    _make_private(data)
    try:
        descriptor = os.open(data / "up.lock", os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError(f"the data folder {data} cannot be used: {error.strerror}") from error
    try:
        _lock(descriptor, data)
        yield
    finally:
        os.close(descriptor)


def _make_private(*folders: Path) -> None:
    """Make folders that nobody else may look into, where they are not there: webhooks' secrets lie in them."""
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the data folder {folder} cannot be used: {error.strerror}") from error


def _folders(settings: Settings, data: Path) -> Iterator[Path]:
    """Return the folders in the data folder that these settings use."""
    elsewhere = {
        "logs": None, "valkey": settings.redis_url, "objects": settings.object_store, "spool": settings.spool
    }  # fmt: skip
    return (data / name for name, other in elsewhere.items() if other is None)


def _lock(descriptor: int, data: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        raise ConfigError(
            f"another `penstock up` (process {other}) runs on {data}: end it first, or take another --data"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0; `ConfigError` if somebody listens there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise ConfigError(
                f"port {port} on {host} cannot be used: {error.strerror}. Take another with --port"
            ) from error
        return int(probe.getsockname()[1])


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
