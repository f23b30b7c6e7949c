"""The checks of `penstock doctor`: each runs by itself, so that one failure hides no other."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from http import HTTPStatus
from typing import TypeVar

from penstock.catalogue.records import catalogue_of
from penstock.cli import environments
from penstock.cli.processes import unread_variables
from penstock.client import Client, ClientError, ModelInfo, PenstockAPIError, Queue, Worker
from penstock.config import Settings
from penstock.errors import ConfigError, PenstockError
from penstock.formats import READS, RUNS
from penstock.intake.drop_checks import inspect_drops
from penstock.storage.checks import (
    Finding,
    inspect_browser_access,
    inspect_disk,
    inspect_own_store,
    inspect_redis,
    inspect_redis_access,
    inspect_redis_room,
    vouched,
)
from penstock.storage.hints import visibility_timeout_s
from penstock.storage.journal.stored_models import EMPTY, StoredCatalogue, merged, read_stored
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.catalogues import Known
from penstock.storage.redis.catalogues import known as known_models
from penstock.storage.redis.drop_events import NO_PASSES, passes
from penstock.storage.redis.fleet import pools
from penstock.storage.redis.identity import Identity, identity
from penstock.storage.redis.queues import Newer, newer
from penstock.storage.redis.scripts import Command, JobStore
from penstock.up.children import RECORD, failing
from penstock.up.valkey import recorded_url

T = TypeVar("T")
U = TypeVar("U")

#: The answer of a job store that does not respond.
NONE_NEWER, NONE_KNOWN = Newer(0, 0), Known({}, frozenset())
_START = "start it: `penstock up`"
#: Run in a process of its own: a process that has left the network cannot return.
_SURVEY = (
    "import json; from penstock.workers.io import sandbox; "
    "print(json.dumps(sandbox.missing(sandbox.survey(sandbox.leave_network()))))"
)


def examine(settings: Settings, url: str, api_key: str | None = None) -> Iterator[Finding]:
    """Yield the findings on the settings' Redis and object store, on the service at `url`, and on this machine.

    Where the settings name neither store, the service runs elsewhere, and only its API is asked.
    """
    for detail in unread_variables(os.environ):
        yield Finding("variable", ok=True, detail=detail, remedy="correct or unset it", doubtful=True)
    if is_elsewhere(settings):
        detail = f"not checked: there is no data folder {settings.data}, and no Redis or object store is set"
        yield Finding("stores", ok=True, detail=detail, remedy="run `penstock doctor` where they are", doubtful=True)
        yield from _service(url, None, api_key, frozenset())
        return
    address = settings.redis_url or recorded_url(settings.data / "valkey")
    yield from _redis(settings, address)
    found = _read(address, identity(), None)
    if found is not None:
        yield _keeper(found)
        yield _formats(_read(address, newer(), NONE_NEWER))
    yield _object_store(settings)
    yield from _browser_access(settings)
    yield from _disks(settings)
    yield _catalogue(settings)
    yield from _access_profiles(settings)
    yield from environments.findings(settings)
    store_address = None if found is None else address
    stored = _stored(settings)
    if stored is not None:
        yield _stored_models(stored)
    known, listed = _read(store_address, known_models(), NONE_KNOWN), _read(store_address, passes(), NO_PASSES)
    models = merged(known, EMPTY if stored is None else stored)
    if stored is not None and (lost := sorted(stored.promotions.keys() - models.promotions.keys())):
        detail = f"no model is served for {', '.join(lost)}, or a record has the name: requests are refused or go there"
        yield Finding(
            "promoted aliases", ok=False, detail=detail, remedy="`penstock models promote` shows and moves them"
        )
    yield from inspect_drops(settings, models, listed.rules)
    if settings.data.is_dir():
        yield _data_folder(settings)
    yield from _processes(settings)
    pooled: frozenset[str] = _read(store_address, pools(), frozenset())
    yield from _service(url, found, api_key, pooled, settings)
    yield _io_processes()


def is_elsewhere(settings: Settings) -> bool:
    """Return True where the settings name no part of a service."""
    return settings.redis_url is None and settings.object_store is None and not settings.data.is_dir()


def _redis(settings: Settings, address: str | None) -> Iterator[Finding]:
    if address is None:
        remedy = f"{_START}, or give its data folder with --data, or set PENSTOCK_REDIS_URL"
        yield Finding(
            "redis", ok=False, detail=f"none is set, and none was started under {settings.data}", remedy=remedy
        )
        return
    try:
        yield from vouched(inspect_redis(address, patience_s=1), settings)
        yield inspect_redis_room(address)
        if settings.with_keys:
            yield inspect_redis_access(address)
    except PenstockError as error:
        yield Finding("redis", ok=False, detail=error.detail, remedy=f"{_START}, or correct redis_url")


def _read(address: str | None, command: Command[T], otherwise: U) -> T | U:
    """Return a job store's answer; `otherwise` without a store, or if it does not respond, which `_redis` reports."""
    if address is None:
        return otherwise
    try:
        with closing(JobStore.open(address, timeout_s=2)) as store:
            return store.run(command)
    except (PenstockError, ValueError):
        return otherwise


def _keeper(found: Identity) -> Finding:
    detail = "none is active" if found.keeper is None else f"{found.keeper} is active"
    remedy = "run `penstock keeper`, or read its log: lost jobs, webhooks, drops and retention need a keeper"
    return Finding("keeper", found.keeper is not None, detail, remedy)


def _formats(found: Newer) -> Finding:
    """Report the jobs that wait for a newer release."""
    detail = f"this release runs jobs of formats up to {RUNS} and reads formats up to {READS}"
    if found.jobs:
        detail += f"; {found.jobs} waiting jobs need a newer one (format {found.version})"
    return Finding("formats", not found.jobs, detail, "start a worker of the newer release, or cancel these jobs")


def _object_store(settings: Settings) -> Finding:
    if settings.object_store is None and not settings.data.is_dir():
        remedy = "give its folder with --data or PENSTOCK_DATA, or set PENSTOCK_OBJECT_STORE"
        return Finding("object store", ok=False, detail=f"there is no data folder {settings.data}", remedy=remedy)
    try:
        return inspect_own_store(settings)
    except PenstockError as error:
        return Finding("object store", ok=False, detail=error.detail, remedy="correct `object_store`")


def _browser_access(settings: Settings) -> Iterator[Finding]:
    """Check that the page in the browser may read and write the bucket. A local store needs no check."""
    if settings.object_store is None or not settings.object_store.startswith("s3://"):
        return
    try:
        yield inspect_browser_access(open_store(settings.store_url, settings), settings.base_url)
    except PenstockError as error:
        yield Finding("page", ok=True, detail=f"not checked: {error.detail}", unchecked=True)


def _disks(settings: Settings) -> Iterator[Finding]:
    """Report the disks of the scratch folder and of the data folder, in which Valkey keeps its log."""
    if settings.spool is not None or settings.data.is_dir():
        yield inspect_disk("scratch disk", settings.spool_dir)
    if settings.data.is_dir():
        yield inspect_disk("data disk", settings.data.resolve())


def _catalogue(settings: Settings) -> Finding:
    """Read the records that a worker with these settings would read."""
    try:
        found = catalogue_of(settings)
    except ConfigError as error:
        return Finding("catalogue", ok=False, detail=error.detail, remedy="correct the file, or correct `models`")
    detail = "; ".join(wrong.problem for wrong in found.wrong.values()) or ", ".join(sorted(found)) or "no models"
    return Finding("catalogue", not found.wrong, detail, "correct it and restart the worker; the other models serve")


def _access_profiles(settings: Settings) -> Iterator[Finding]:
    """Report the access profiles whose secrets cannot be read here: workers need them, and no other process."""
    for profile in settings.access_profiles:
        places = ", ".join(profile.buckets or profile.hosts)
        whose = f" for {', '.join(profile.tenants)}" if profile.tenants else ""
        try:
            if profile.secret is not None:
                profile.secret.read()
        except ConfigError as error:
            remedy = "set it where the workers start; jobs that read there fail with `fetch_failed`"
            yield Finding(f"access {profile.name}", ok=False, detail=error.detail, remedy=remedy)
        else:
            yield Finding(f"access {profile.name}", ok=True, detail=f"{profile.kind} at {places}{whose}")


def _stored(settings: Settings) -> StoredCatalogue | None:
    """Return the models in the object store; None if it does not respond, which `_object_store` reports."""
    if settings.object_store is None and not settings.data.is_dir():
        return None
    try:
        return read_stored(open_store(settings.store_url, settings))
    except PenstockError:
        return None


def _stored_models(found: StoredCatalogue) -> Finding:
    """Report the models that the service accepts without a worker, and those that this release cannot read."""
    objects = {**found.checked, **found.published}
    kept = [name for name in sorted(objects) if found.entry(name) is not None]
    unread = [name for name in sorted(objects) if found.entry(name) is None and not found.withdrawn(name)]
    detail = f"without a worker, jobs are accepted for: {', '.join(kept) or 'none'}"
    if unread:
        detail += f"; this release cannot read: {', '.join(unread)}"
    return Finding("stored models", not unread, detail, "publish them again: `penstock models publish`")


def _data_folder(settings: Settings) -> Finding:
    """Report the users who can read the data folder, without judging the operator's choice."""
    mode = stat.S_IMODE(settings.data.stat().st_mode)
    others = mode & (stat.S_IRWXG | stat.S_IRWXO)
    who = f"other users can read it; `chmod 700 {settings.data}` prevents that" if others else "only you can read it"
    return Finding("data folder", ok=True, detail=f"{settings.data} (mode {mode:04o}): {who}", doubtful=bool(others))


def _processes(settings: Settings) -> Iterator[Finding]:
    """Report the processes of `penstock up` that keep ending."""
    for each in failing(settings.data / RECORD):
        often = "once" if each.failures == 1 else f"{each.failures} times in a row"
        detail = f"ended {often} soon after its start: {each.why}"
        remedy = f"read {settings.data / 'logs' / each.name}.log"
        yield Finding(f"process {each.name}", each.failures == 1, detail, remedy, doubtful=True)


def _service(
    url: str, found: Identity | None, api_key: str | None, pooled: frozenset[str], settings: Settings | None = None
) -> Iterator[Finding]:
    """Check the API, and compare its answers with the settings if they are those of its machine."""
    try:
        with Client(url, api_key=api_key, patience_s=0) as client:
            mark = client.job_store()
            yield Finding("api", ok=True, detail=url)
            yield (access := _access(url, client))
            if not access.ok:
                return
            queues, models, workers = client.queues(), client.models(), client.workers()
    except ClientError as error:
        yield Finding("api", ok=False, detail=str(error), remedy=f"{_START}, or give its address with --url")
        return
    if found is not None and mark != found.id:
        detail = f"{url} uses another Redis than the one checked here: these are two services"
        yield Finding("one service", ok=False, detail=detail, remedy="correct PENSTOCK_URL, or redis_url and --data")
    served, devices = any(queue.workers for queue in queues), _devices(workers)
    for queue in queues:
        yield _worker(queue, devices.get(queue.name, ()), served=served, pooled=queue.name in pooled)
    if settings is not None:
        yield from _hints(settings, models)
    yield from _models(models, {name for worker in workers for name in worker.models})


def _access(url: str, client: Client) -> Finding:
    """Check that the given key, if the service requires keys, permits the next checks."""
    remedy = "set PENSTOCK_API_KEY: `penstock keys create --scopes read,monitor` creates one"
    with Client(url, patience_s=0) as anybody:
        with_keys = _refusal(anybody) is not None
    refusal = _refusal(client)
    if refusal is not None:
        return Finding("access", ok=False, detail=f"the service requires API keys; {refusal}", remedy=remedy)
    return Finding("access", ok=True, detail="by API keys" if with_keys else "open: no API keys, this machine only")


def _refusal(client: Client) -> str | None:
    """Return the reason for which a client may not read models and queues; None if the client may."""
    try:
        client.models()
        client.queues()
    except PenstockAPIError as error:
        if error.code not in ("unauthorized", "insufficient_scope"):
            raise
        return "no valid key was given" if error.status == HTTPStatus.UNAUTHORIZED else error.detail
    return None


def _devices(workers: Sequence[Worker]) -> dict[str, Sequence[str]]:
    """Return the kinds of devices that the workers of each queue have."""
    found: dict[str, set[str]] = {}
    for worker in workers:
        for queue in worker.queues:
            found.setdefault(queue, set()).add(worker.device)
    return {queue: sorted(devices) for queue, devices in found.items()}


def _worker(queue: Queue, devices: Sequence[str] = (), *, served: bool, pooled: bool) -> Finding:
    """Report the workers of a queue. A `pooled` queue may have none: its driver starts workers when jobs wait."""
    kinds = f" ({', '.join(devices)})" if devices else ""
    detail = f"{queue.workers} at queue {queue.name}{kinds}, {queue.queued} waiting, {queue.running} running"
    if pooled:
        return Finding("worker", ok=True, detail=f"{detail}; `penstock up` starts them when jobs wait")
    # A queue that is no longer served needs no worker as long as it is empty.
    ok = queue.workers > 0 or (served and queue.queued == 0)
    return Finding("worker", ok, detail, "no worker was seen lately: run `penstock worker`, or read its log")


def _hints(settings: Settings, models: Sequence[ModelInfo]) -> Iterator[Finding]:
    """Compare the visibility timeout of workers with these settings with the longest execution timeout of a model."""
    try:
        found = catalogue_of(settings)
    except ConfigError:  # reported by `_catalogue`
        return
    known = {name: float(model.execution_timeout_s) for name, model in found.items()}
    running = (model for model in models if model.name not in found.wrong)
    served = {model.name: float(model.raw.get("execution_timeout_s") or 0) for model in running}
    held_s = visibility_timeout_s(max(known.values(), default=0))
    longest_s, name = max(((s, name) for name, s in (known | served).items()), default=(0.0, "none"))
    detail = f"{held_s} s, the longest execution timeout is {longest_s:g} s ({name})"
    yield Finding("visibility timeout", held_s > longest_s, detail, "set this machine's `models` to the service's")


def _models(models: Sequence[ModelInfo], served: Set[str]) -> Iterator[Finding]:
    """Report the models. A model without a living worker is reported as unserved, even if its last worker was ready."""
    if not models:
        yield Finding("models", ok=False, detail="none", remedy="start a worker, which publishes its models")
    for model in models:
        yield Finding(
            f"model {model.name}",
            model.problem is None,
            _said(model, served),
            _remedy(model),
            doubtful=model.problem is None and (model.name not in served or bool(model.raw.get("load_failures"))),
        )


def _said(model: ModelInfo, served: Set[str]) -> str:
    """Return a model's state, with the machines on which its load ended its process."""
    state = model.problem or f"revision {model.revision}{_waits(model, served)}"
    loads = [
        f"{each['machine']}: its load {each['reason']} ({each['failures']} times in a row; last lines: "
        f"{' | '.join(each['lines']) or 'none'})"
        for each in model.raw.get("load_failures") or ()
    ]
    return "; ".join([state, *loads])


def _remedy(model: ModelInfo) -> str:
    if model.raw.get("load_failures"):
        return f"correct the model or its machine, then `penstock models retry {model.name}`"
    return _REMEDY.format(model.name) if model.problem else "start one: `penstock up`, or `penstock worker`"


_REMEDY = "correct it and restart the worker; `penstock models check {}` on its machine checks it again"


def _waits(model: ModelInfo, served: Set[str]) -> str:
    if model.name not in served:
        return ", but no worker serves it now: its jobs wait"
    return "" if model.ready else f", {model.raw.get('note') or 'warming up'}"


def _io_processes() -> Finding:
    """Report the parts of the sandbox that this kernel or container refuses."""
    done = subprocess.run([sys.executable, "-c", _SURVEY], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        return Finding("io processes", ok=False, detail="they do not start", remedy="see `penstock worker`'s log")
    missing: list[str] = json.loads(done.stdout)
    inside = "processors run in processes without a network, without other processes, and with their own files only"
    detail = f"{inside}; but here: {'; '.join(missing)}" if missing else inside
    return Finding("io processes", ok=True, detail=detail, doubtful=bool(missing))
