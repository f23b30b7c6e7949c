"""What `penstock doctor` looks at: each part by itself, so that one failure hides no other."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import TypeVar

from penstock.client import Client, ClientError, ModelInfo, PenstockAPIError, Queue
from penstock.config import Settings
from penstock.errors import ConfigError, PenstockError
from penstock.models import read_catalogue
from penstock.queue import visibility_timeout_s
from penstock.storage.catalogues import catalogue
from penstock.storage.checks import Finding, inspect_object_store, inspect_redis
from penstock.storage.drop_checks import inspect_drops
from penstock.storage.drop_events import NO_PASSES, passes
from penstock.storage.identity import Identity, identity
from penstock.storage.objects import open_store
from penstock.storage.scripts import Command, JobStore
from penstock.valkey import recorded_url

T = TypeVar("T")

_START = "start it: `penstock up`"
#: Asked in a process of its own: whoever left the network does not come back.
_LEAVE = "from penstock.workers.io.sandbox import leave_network; print(leave_network())"


def examine(settings: Settings, url: str, api_key: str | None = None) -> Iterator[Finding]:
    """Yield what was found of the settings' Redis and object store, of the service at `url`, and of this machine."""
    address = settings.redis_url or recorded_url(settings.data / "valkey")
    yield from _redis(settings, address)
    found = None if address is None else _identity(address)
    if found is not None:
        yield _keeper(found)
    yield _object_store(settings)
    yield _catalogue(settings)
    asked = None if found is None else address
    models, listed = _asked(asked, catalogue(), {}), _asked(asked, passes(), NO_PASSES)
    yield from inspect_drops(settings, models, listed.rules)
    if settings.data.is_dir():
        yield _data_folder(settings)
    yield from _service(settings, url, found, api_key)
    yield _io_processes()


def _redis(settings: Settings, address: str | None) -> Iterator[Finding]:
    if address is None:
        remedy = f"{_START}, or say where it keeps its data with --data, or set PENSTOCK_REDIS_URL"
        yield Finding(
            "redis", ok=False, detail=f"none is set, and none was started under {settings.data}", remedy=remedy
        )
        return
    try:
        yield from inspect_redis(address, patience_s=1)
    except PenstockError as error:
        yield Finding("redis", ok=False, detail=error.detail, remedy=f"{_START}, or correct redis_url")


def _identity(address: str) -> Identity | None:
    """Return what a job store says of itself; None where it says nothing, which `_redis` has told of."""
    try:
        store = JobStore.open(address, timeout_s=2)
    except ValueError:
        return None
    try:
        return store.run(identity())
    except PenstockError:
        return None
    finally:
        store.close()


def _asked(address: str | None, command: Command[T], otherwise: T) -> T:
    """Return what a job store answers; `otherwise` without one, or where it does not answer any more."""
    if address is None:
        return otherwise
    store = JobStore.open(address, timeout_s=2)
    try:
        return store.run(command)
    except PenstockError:
        return otherwise
    finally:
        store.close()


def _keeper(found: Identity) -> Finding:
    detail = "none is active" if found.keeper is None else f"{found.keeper} is active"
    remedy = "`penstock keeper`, or read its log: lost jobs, webhooks, drops and retention wait for one"
    return Finding("keeper", found.keeper is not None, detail, remedy)


def _object_store(settings: Settings) -> Finding:
    if settings.object_store is None and not settings.data.is_dir():
        remedy = "say where it is with --data or PENSTOCK_DATA, or set PENSTOCK_OBJECT_STORE"
        return Finding("object store", ok=False, detail=f"there is no data folder {settings.data}", remedy=remedy)
    try:
        return inspect_object_store(open_store(settings.store_url, settings), settings.store_url)
    except PenstockError as error:
        return Finding("object store", ok=False, detail=error.detail, remedy="correct `object_store`")


def _catalogue(settings: Settings) -> Finding:
    """Read the records that a worker with these settings would read."""
    try:
        found = read_catalogue(*settings.models)
    except ConfigError as error:
        return Finding("catalogue", ok=False, detail=error.detail, remedy="mend the file, or correct `models`")
    detail = "; ".join(wrong.problem for wrong in found.wrong.values()) or ", ".join(sorted(found)) or "no models"
    return Finding("catalogue", not found.wrong, detail, "mend that and restart the worker; the other models serve")


def _data_folder(settings: Settings) -> Finding:
    """Tell who may read it: that is the operator's choice."""
    mode = stat.S_IMODE(settings.data.stat().st_mode)
    others = mode & (stat.S_IRWXG | stat.S_IRWXO)
    who = f"others of this machine may look into it; `chmod 700 {settings.data}` ends that" if others else "yours alone"
    return Finding("data folder", ok=True, detail=f"{settings.data} (mode {mode:04o}): {who}")


def _service(settings: Settings, url: str, found: Identity | None, api_key: str | None) -> Iterator[Finding]:
    try:
        with Client(url, api_key=api_key, patience_s=0) as client:
            mark = client.job_store()
            yield Finding("api", ok=True, detail=url)
            yield (access := _access(url, client))
            if not access.ok:
                return
            queues, models = client.queues(), client.models()
    except ClientError as error:
        yield Finding("api", ok=False, detail=str(error), remedy=f"{_START}, or say where it is with --url")
        return
    if found is not None and mark != found.mark:
        detail = f"{url} works on another Redis than the one looked at here: these are two services"
        yield Finding("one service", ok=False, detail=detail, remedy="correct PENSTOCK_URL, or redis_url and --data")
    served = any(queue.workers for queue in queues)
    yield from (_worker(queue, served=served) for queue in queues)
    yield from _hints(settings, models)
    yield from _models(models)


def _access(url: str, client: Client) -> Finding:
    """Look whether the service asks for keys, and whether this one shows what is looked at next."""
    remedy = "set PENSTOCK_API_KEY: `penstock keys create --scopes read,monitor` makes one for this"
    with Client(url, patience_s=0) as anybody:
        asked = _refusal(anybody) is not None
    refusal = _refusal(client)
    if refusal is not None:
        return Finding("access", ok=False, detail=f"API keys are asked for; {refusal}", remedy=remedy)
    return Finding("access", ok=True, detail="by API keys" if asked else "open: no API keys, this machine only")


def _refusal(client: Client) -> str | None:
    """Return why a client may not see models and queues, None where it may."""
    try:
        client.models()
        client.queues()
    except PenstockAPIError as error:
        if error.code not in ("unauthorized", "insufficient_scope"):
            raise
        return "no valid one came with the question" if error.status == HTTPStatus.UNAUTHORIZED else error.detail
    return None


def _worker(queue: Queue, *, served: bool) -> Finding:
    detail = f"{queue.workers} at queue {queue.name}, {queue.queued} waiting, {queue.running} running"
    # A queue of former days needs nobody as long as nothing waits in it.
    ok = queue.workers > 0 or (served and queue.queued == 0)
    return Finding("worker", ok, detail, "no worker was seen lately: `penstock worker`, or read its log")


def _hints(settings: Settings, models: Sequence[ModelInfo]) -> Iterator[Finding]:
    """Compare how long workers with these settings may hold a hint with the longest that a served model may run."""
    try:
        found = read_catalogue(*settings.models)
    except ConfigError:  # told of by itself
        return
    known = {name: float(model.execution_timeout_s) for name, model in found.items()}
    running = (model for model in models if model.name not in found.wrong)
    served = {model.name: float(model.raw.get("execution_timeout_s") or 0) for model in running}
    held_s = visibility_timeout_s(max(known.values(), default=0))
    longest_s, name = max(((s, name) for name, s in (known | served).items()), default=(0.0, "none"))
    detail = f"{held_s} s, the longest execution timeout is {longest_s:g} s ({name})"
    yield Finding("visibility timeout", held_s > longest_s, detail, "give this machine's `models` the service's")


def _models(models: Sequence[ModelInfo]) -> Iterator[Finding]:
    if not models:
        yield Finding("models", ok=False, detail="none", remedy="a worker tells of its models when it starts")
    for model in models:
        yield Finding(
            f"model {model.name}",
            model.problem is None,
            model.problem or f"revision {model.revision}{'' if model.ready else ', warming up'}",
            f"mend that and restart the worker; `penstock models check {model.name}` where it runs looks again",
        )


def _io_processes() -> Finding:
    done = subprocess.run([sys.executable, "-c", _LEAVE], capture_output=True, text=True, check=False, timeout=30)
    how = {
        "namespace": "processors run without a network, in a namespace of their own",
        "audit hook": "no namespaces here: processors are refused Python's sockets, not those of libraries in C",
    }
    said = how.get(done.stdout.strip())
    return Finding("io processes", said is not None, said or "they do not start", "see `penstock worker`'s log")
