"""A standby: a process that has imported what a worker needs, and becomes a worker when it gets its orders.

The orders are one line of JSON on its standard input: the worker's id, the file of its log, and the variables of its
environment. Until then the standby connects to no store, loads no model and touches no device: the variables name the
device. It ends with the supervisor, whose end of its standard input closes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import structlog

from penstock.catalogue.records import catalogue_of
from penstock.config import Settings, load_settings
from penstock.errors import PenstockError
from penstock.storage.checks import await_durable_redis
from penstock.workers import app
from penstock.workers.engine.runners import Runners
from penstock.workers.io.pool import IOPool

#: Modules that a worker imports when it starts to listen, besides those of its models.
MODULES = ("celery.worker.consumer", "celery.concurrency.thread", "kombu.transport.redis")
#: Files of NVIDIA's devices.
_DEVICES = "/dev/nvidia"

log = structlog.get_logger(__name__)


def main(settings: Settings) -> int:
    """Import, wait for orders, and run a worker; return the exit code."""
    processing = app.io_pool(settings)
    prepare(settings, processing)
    if found := opened_devices():
        log.error("standby.opened_devices", problem="importing a model's libraries opened a device", devices=found)
        processing.close()
        return 1
    log.info("standby.ready", pid=os.getpid())
    orders = read_orders(sys.stdin.buffer)
    if orders is None:
        processing.close()
        return 0
    obey(orders, processing)
    settings = load_settings()
    await_durable_redis(settings)
    return app.main(settings, orders["worker"], processing=processing)


def read_orders(stream: BinaryIO) -> dict[str, Any] | None:
    """Wait for the orders and return them; None where the supervisor has ended, also within its line."""
    line = stream.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def prepare(settings: Settings, processing: IOPool) -> None:
    """Import the libraries of all models' runners here, and those of their processors in the fork server.

    A model that cannot be used is none of the standby's business: the worker reports it.
    """
    models, localise = list(catalogue_of(settings).values()), app.localiser(settings)
    for model in models:
        with suppress(PenstockError):
            Runners.installed().import_for(localise(model, False))
    for module in MODULES:
        importlib.import_module(module)
    for processor in {model.processor for model in models}:
        with suppress(PenstockError):
            processing.server.preload(processor)


def obey(orders: Mapping[str, Any], processing: IOPool) -> None:
    """Set this process, and its fork server, up as those of a worker that was started with these orders."""
    os.environ.update(orders["variables"])
    for name, flags, descriptors in (
        (os.devnull, os.O_RDONLY, (0,)),
        (orders["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, (1, 2)),
    ):
        opened = os.open(name, flags, 0o600)
        for descriptor in descriptors:
            os.dup2(opened, descriptor)
        os.close(opened)
    log.info("standby.ordered", worker=orders["worker"])
    with suppress(PenstockError):  # a fork server that has ended is replaced by one that logs here
        processing.server.log_to(2)


def opened_devices(descriptors: Path = Path("/proc/self/fd")) -> list[str]:
    """Return the files of devices that this process has open: CUDA reads its variables when it opens one."""
    if not descriptors.is_dir():
        return []
    opened = set()
    for descriptor in descriptors.iterdir():
        with suppress(OSError):
            opened.add(str(descriptor.readlink()))
    return sorted(path for path in opened if path.startswith(_DEVICES))
