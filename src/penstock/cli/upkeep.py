"""`penstock doctor` and `penstock recover`: maintenance of a service, with its settings and its data folder."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from penstock.cli.display import out, print_json, table
from penstock.cli.options import DEFAULT_URL, JOB_FAILED, OK, AsJson, Data, Url
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.storage.objects.base import ObjectStore
    from penstock.storage.redis.records import JobStore


def doctor(url: Url = DEFAULT_URL, data: Data = None, as_json: AsJson = False) -> None:
    """Check the settings' Redis and object store, the API, keeper, workers and models. Exit code 1 on a failure.

    Without a data folder and settings, check the API at --url or PENSTOCK_URL, its queues and models.
    """
    from penstock.cli.doctor import examine, is_elsewhere
    from penstock.config import api_key

    settings = load(data)
    if is_elsewhere(settings) and url == DEFAULT_URL:
        require_data(settings)
    findings = list(examine(settings, url, api_key()))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = table("", "check", "result", "what to do")
        for finding in findings:
            verdict = "FAIL" if not finding.ok else "warn" if finding.doubtful else "ok"
            rows.add_row(verdict, finding.name, finding.detail, "" if verdict == "ok" else finding.remedy)
        out.print(rows)
    raise typer.Exit(OK if all(finding.ok for finding in findings) else JOB_FAILED)


def recover(data: Data = None) -> None:
    """Restore every job that is in the object store and not in Redis. The keeper does so after Redis was emptied.

    Redis is the one in the settings, or the one that `penstock up` runs on the data folder.
    """
    from penstock.storage.objects.opening import open_store
    from penstock.storage.redis.records import JobStore
    from penstock.up.valkey import redis_address
    from penstock.workers.keeper.recovery import recover as run

    settings = require_data(load(data))
    store = JobStore.open(redis_address(settings))
    found = run(store, open_store(settings.store_url, settings))
    store.close()
    out.print(f"{found} jobs have a manifest; all of them are in Redis")


def load(data: Path | None) -> Settings:
    """Return the settings, with this data folder if one is given."""
    from penstock.config import load_settings

    return load_settings(**({} if data is None else {"data": data}))


def require_data(settings: Settings) -> Settings:
    """Return the settings of an existing service; `ConfigError` if its data folder does not exist."""
    if settings.object_store is None and not settings.data.is_dir():
        raise ConfigError(
            f"there is no data folder {settings.data}: give the folder of `penstock up` with --data or PENSTOCK_DATA"
        )
    return settings


def opened(data: Path | None) -> tuple[Settings, ObjectStore]:
    """Return the settings of an existing service and its object store; raise the errors of `require_data`."""
    from penstock.storage.objects.opening import open_store

    settings = require_data(load(data))
    return settings, open_store(settings.store_url, settings)


@contextmanager
def opened_stores(data: Path | None) -> Iterator[tuple[Settings, JobStore, ObjectStore]]:
    """Open the stores of an existing service for the block; raise the errors of `require_data`."""
    from penstock.storage.redis.records import JobStore
    from penstock.up.valkey import redis_address

    settings, objects = opened(data)
    store = JobStore.open(redis_address(settings))
    try:
        yield settings, store, objects
    finally:
        store.close()


def operator() -> str:
    """Return the name of the user and of the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
