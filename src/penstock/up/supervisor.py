"""`penstock up`: the whole system on one machine, kept running by one supervisor.

data/up.lock            held while a supervisor runs: one per data folder
data/children.json      the started processes, so that the next supervisor ends those still running
data/valkey/            the embedded Valkey's log and address; it outlives the supervisor
data/objects/           the local object store
data/secret             signs the local store's links and the API keys
data/logs/*.log         the log of each process

New folders belong to the operator alone (0700). Existing folders keep their mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psutil
from pydantic import BaseModel, SecretStr

from penstock.catalogue.records import catalogue_of
from penstock.config import Settings, require_safe_access
from penstock.errors import ConfigError, PenstockError
from penstock.signals import POLL_EVERY_S, Signals
from penstock.storage.checks import inspect_redis_access, require_durable_redis
from penstock.storage.drop_rules import require_own_outputs
from penstock.storage.journal.api_keys import list_keys
from penstock.storage.journal.stored_models import StoredModels
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.catalogues import CHECKING, catalogue
from penstock.storage.redis.scripts import JobStore
from penstock.storage.signing import load_or_create_secret
from penstock.up.children import RECORD, Child, Ledger, Say, Supervisor
from penstock.up.devices import VISIBLE, Share, share_of, visible_devices
from penstock.up.driver import Driver, Standby
from penstock.up.scaling import ONE_WORKER, Range
from penstock.up.valkey import Valkey

#: Seconds beyond `drain_s` that a worker needs to return its jobs and to end.
WORKER_STOP_S = 20.0
STOP_S = 10.0
#: Seconds that Redis has to answer the supervisor, which notices no signal meanwhile.
REDIS_S = 1.0
#: The command line, as a command.
RUN = (sys.executable, "-m", "penstock.cli")
_POLL_READY_EVERY_S = 0.5


#: Folder in the data folder in which several API processes count requests together.
REQUEST_METRICS = "request-metrics"


@dataclass(frozen=True, slots=True)
class Role:
    """A supervised process: its name and its command."""

    name: str
    command: tuple[str, ...]
    stage: str
    stop_s: float = STOP_S
    #: True if it gets the secret that signs links and keys; without need nobody does.
    signs: bool = False
    #: Descriptors that it inherits.
    descriptors: tuple[int, ...] = ()
    #: Variables of its environment beside those of all processes.
    variables: Mapping[str, str] = field(default_factory=dict)


def our_roles(
    settings: Settings,
    *,
    apis: int = 1,
    workers: Range = ONE_WORKER,
    devices: tuple[str, ...] = (),
    listener: int | None = None,
) -> Iterator[Role]:
    """Return the API processes, the keeper and the workers that always run, in the order of their start.

    `listener` is the descriptor of the socket on which the API processes listen; None = the one process opens its own.
    """
    parent = ("--supervisor", str(os.getpid()))
    shared = () if listener is None else ("--fd", str(listener))
    inherited = () if listener is None else (listener,)
    counts = {} if apis == 1 else {"PROMETHEUS_MULTIPROC_DIR": str(settings.data / REQUEST_METRICS)}
    for number in range(1, apis + 1):
        yield Role(
            numbered("api", number), (*RUN, "api", *parent, *shared), "api", signs=True, descriptors=inherited,
            variables=counts,
        )  # fmt: skip
    yield Role("keeper", (*RUN, "keeper", *parent), "keeper")
    for number in range(1, workers.least + 1):
        yield worker_role(settings, number, "--idle-exit", "0", share=share_of(number, devices, workers.most))


def worker_role(settings: Settings, number: int, *options: str, share: Share) -> Role:
    """Return the role of the nth worker on this machine, with further options of its command."""
    command = (*RUN, "worker", "--supervisor", str(os.getpid()), *options)
    variables = {"PENSTOCK_DEVICE_WORKERS": str(settings.device_workers * share.workers)}
    if share.device is not None:
        variables[VISIBLE] = share.device
    return Role(
        numbered("worker", number), command, "worker", settings.drain_s + WORKER_STOP_S, variables=variables
    )  # fmt: skip


def numbered(name: str, number: int) -> str:
    """Return the name of the nth process of its kind: `worker`, `worker-2`, ..."""
    return name if number == 1 else f"{name}-{number}"


def up(
    settings: Settings,
    say: Say,
    *,
    workers: Range | None = None,
    apis: int = 1,
    standby: bool = False,
    roles: Callable[[Settings], Iterable[Role]] | None = None,
) -> int:
    """Run everything until SIGINT or SIGTERM and return the exit code; `say` receives messages as (name, sentence).

    `workers.least` workers always run; up to `workers.most`, further ones start when jobs want them, and leave by
    themselves. None = one for each device. With `standby`, a process waits to become the next of these. `roles`
    replaces `our_roles`.

    Raises `ConfigError` before anything is started if the settings cannot work.
    """
    check(settings)
    if standby and (workers is None or workers.most == workers.least):
        raise ConfigError("--standby is for workers that come and go: set a range such as --workers 0..4")
    data = settings.data.resolve()
    with _only_one(data), Signals() as signals, contextlib.ExitStack() as stack:
        ledger = Ledger(data / RECORD)
        for name in ledger.end_stale(settings.drain_s + STOP_S):
            say(name, "ended: an earlier supervisor had left it running")
        listener = None
        if apis > 1:
            listener = stack.enter_context(_bound(settings.host, settings.port))
            settings = settings.model_copy(update={"port": int(listener.getsockname()[1])})
        settings = _completed(settings, data, check_port=listener is None)
        _make_private(*_folders(settings, data))
        if apis > 1:
            _empty(data / REQUEST_METRICS)
        supervisor = Supervisor(say)
        try:
            settings = _start_redis(settings, supervisor, say)
            devices = visible_devices()
            _describe(settings, devices, say)
            workers = workers or Range(max(1, len(devices)), max(1, len(devices)))
            descriptor = None if listener is None else listener.fileno()
            ours = partial(our_roles, apis=apis, workers=workers, devices=devices, listener=descriptor)
            _start_roles((roles or ours)(settings), settings, supervisor, ledger, say)
            store = stack.enter_context(contextlib.closing(impatient_store(settings)))
            stored = StoredModels(open_store(settings.store_url, settings))
            tick = supervisor.tick
            if workers.most > workers.least:
                share = partial(share_of, devices=devices, most=workers.most)
                kept = _standby(settings, ledger) if standby else None
                starter = _worker_starter(settings, ledger, share, kept)
                driver = Driver(settings, store, supervisor, say, workers, starter, kept, partial(_has_models, stored))
                tick = driver.tick
            _keep(settings, store, stored, tick, signals, say)
        finally:
            try:
                say("up", "ending in order; press Ctrl-C again to end at once")
            finally:  # nobody may read the output any more
                supervisor.stop(hurry=signals.twice)
                ledger.forget()
    return 0


def check(settings: Settings) -> None:
    """Raise `ConfigError` for settings that would make one of the processes fail at every start."""
    require_safe_access(settings)
    require_own_outputs(settings.drops)
    catalogue_of(settings)


def environment(settings: Settings) -> dict[str, str]:
    """Return the `PENSTOCK_*` variables from which `load_settings` restores these settings."""
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


def child_of(
    role: Role, settings: Settings, ledger: Ledger, warm: Callable[[], psutil.Popen | None] = lambda: None
) -> Child:
    """Return the process of a role, not started yet; `warm` returns one that stands in for a new one."""
    return Child(
        role.name, role.command, env=_environment_of(role, settings), log=log_of(role.name, settings), ledger=ledger,
        stop_s=role.stop_s, stage=role.stage, descriptors=role.descriptors, warm=warm,
    )  # fmt: skip


def _environment_of(role: Role, settings: Settings) -> dict[str, str]:
    env = {**os.environ, **environment(settings), **role.variables}
    if not role.signs:
        env.pop("PENSTOCK_SECRET", None)
    return env


def log_of(name: str, settings: Settings) -> Path:
    """Return the file of a process's log."""
    return settings.data / "logs" / f"{name}.log"


def _standby(settings: Settings, ledger: Ledger) -> Standby:
    """Return the standby, not started yet; its orders name its device, and with how many workers it shares it."""
    role = Role("standby", (*RUN, "worker", "--supervisor", str(os.getpid()), "--standby"), "worker")
    env, log = _environment_of(role, settings), log_of(role.name, settings)
    return Standby(role.name, role.command, env=env, log=log, ledger=ledger, stop_s=role.stop_s, stage=role.stage)


def _worker_starter(
    settings: Settings, ledger: Ledger, share: Callable[[int], Share], standby: Standby | None
) -> Callable[[int, str, float], Child]:
    def worker(number: int, worker_id: str, idle_exit_s: float) -> Child:
        options = ("--id", worker_id, "--idle-exit", f"{idle_exit_s:g}")
        role = worker_role(settings, number, *options, share=share(number))
        if standby is None:
            return child_of(role, settings, ledger)
        variables = {**role.variables, "PENSTOCK_IDLE_EXIT_S": f"{idle_exit_s:g}"}
        orders = {"worker": worker_id, "log": str(log_of(role.name, settings)), "variables": variables}
        return child_of(role, settings, ledger, partial(standby.hand_over, orders))

    return worker


def _completed(settings: Settings, data: Path, *, check_port: bool) -> Settings:
    port = _free_port(settings.host, settings.port) if check_port else settings.port
    secret = settings.secret or SecretStr(load_or_create_secret(data / "secret"))
    return settings.model_copy(update={"data": data, "port": port, "secret": secret})


def _start_redis(settings: Settings, supervisor: Supervisor, say: Say) -> Settings:
    if settings.redis_url is None:
        valkey = Valkey(settings.data / "valkey", settings.data / "logs" / "valkey.log")
        supervisor.start(valkey)
        how = "was still running" if valkey.attached else "started"
        say("valkey", f"{valkey.version()} {how} on port {valkey.port}, data in {valkey.folder}")
        settings = settings.model_copy(update={"redis_url": valkey.url})
    else:
        say("redis", "the one in redis_url")
    require_durable_redis(settings)
    if settings.with_keys and not (access := inspect_redis_access(settings.redis_address)).ok:
        say("redis", f"OPEN: {access.detail}; {access.remedy}")
    return settings


def _describe(settings: Settings, devices: Sequence[str], say: Say) -> None:
    """Tell the operator the store, the access, models that cannot be used, and the devices."""
    say("store", settings.store_url)
    say("access", _access(settings))
    for wrong in catalogue_of(settings).wrong.values():
        say("models", f"{wrong.name} cannot be used: {wrong.problem}")
    if devices:
        say("devices", f"{', '.join(devices)}; one for each worker")


def _start_roles(roles: Iterable[Role], settings: Settings, supervisor: Supervisor, ledger: Ledger, say: Say) -> None:
    for role in roles:
        child = child_of(role, settings, ledger)
        supervisor.start(child)
        say(role.name, f"process {child.pid}, log in {child.log}")


def _access(settings: Settings) -> str:
    """Return a sentence for the operator on the access to the API."""
    if settings.with_keys:
        return "API keys are required: see `penstock keys`"
    return "OPEN: no API keys; everybody on this machine is the tenant default (`penstock up --keys` requires keys)"


def _tell_of_keys(settings: Settings, say: Say) -> None:
    """Tell the operator that no key exists yet."""
    found = list_keys(open_store(settings.store_url, settings))
    with contextlib.suppress(PenstockError):
        if settings.with_keys and not any(record.state(at=time.time()) == "active" for record in found):
            say("access", f"there is no key yet: create one with `penstock keys create --data {settings.data}`")


def impatient_store(settings: Settings) -> JobStore:
    """Return the job store for the loop of the supervisor, which repeats each look, and must notice signals soon."""
    return JobStore.open(settings.redis_address, timeout_s=REDIS_S, tries=1)


def _has_models(stored: StoredModels) -> bool:
    """Return True where the object store has a model whose jobs are accepted without a worker."""
    found = stored.read()
    return any(found.entry(name) is not None for name in {*found.published, *found.checked})


def _keep(
    settings: Settings, store: JobStore, stored: StoredModels, tick: Callable[[], None], signals: Signals, say: Say
) -> None:
    ready, look_at = False, 0.0
    while not signals.once():
        tick()
        if not ready and time.monotonic() >= look_at:
            look_at = time.monotonic() + _POLL_READY_EVERY_S
            ready = _is_ready(settings, store, stored)
            if ready:
                address = settings.base_url
                say("ready", f"{address} (page at {address}/ui, documentation at {address}/docs); Ctrl-C ends it")
                _tell_of_keys(settings, say)
        time.sleep(POLL_EVERY_S)


def _is_ready(settings: Settings, store: JobStore, stored: StoredModels) -> bool:
    """Return True if the API accepts jobs, and a worker has checked its models or the object store has some."""
    here = f"http://{_in_url(settings.host)}:{settings.port}"
    try:
        with httpx2.Client(base_url=here, trust_env=False, timeout=1.0) as http:
            if not http.get("/readyz").is_success:
                return False
        models = store.run(catalogue()).values()  # the API's own answer may need a key
        if not models:
            return _has_models(stored)
    except (httpx2.HTTPError, PenstockError):
        return False
    return all(model.problem != CHECKING for model in models)


@contextlib.contextmanager
def _only_one(data: Path) -> Iterator[None]:
    """Hold the data folder's lock; `ConfigError` if another supervisor holds it."""
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
    """Create missing folders, unreadable for other users: they hold webhooks' secrets."""
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


def _empty(folder: Path) -> None:
    """Make a folder, without what an earlier start left there."""
    shutil.rmtree(folder, ignore_errors=True)
    _make_private(folder)


def _lock(descriptor: int, data: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = os.pread(descriptor, 32, 0).decode(errors="replace") or "unknown"
        raise ConfigError(
            f"another `penstock up` (process {other}) runs on {data}: end it first, or choose another --data"
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0; `ConfigError` if the port is in use."""
    with _bound(host, port) as probe:
        return int(probe.getsockname()[1])


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to the port, or to a free one for 0; `ConfigError` if the port is in use."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"port {port} on {host} cannot be used: {error.strerror}. Choose another with --port"
        ) from error
    return bound


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
