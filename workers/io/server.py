"""The fork server: a process that imports what processors need once, and forks a template for each model.

It has one thread. It imports a processor of Penstock before it forks the first template for it. Plugins are imported
in templates alone, where a crash ends nothing else. The fork server ends with its worker, and its forks end with it.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import structlog

from penstock.functions.wire import Closed, Wire
from penstock.observation.log import configure, log_uncaught
from penstock.processors.registry import GROUP, Registry
from penstock.workers.io import sandbox, system_calls
from penstock.workers.io.children import Children
from penstock.workers.io.ends import end_to_worker
from penstock.workers.io.template import TemplateServer

#: Modules that nearly every processor imports.
PRELOAD = ("numpy", "PIL.Image")

log = structlog.get_logger(__name__)


def main(descriptor: int, log_descriptor: int) -> None:
    """Serve the worker at the other end of a socket until it ends; the log goes to a descriptor of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when to end: it may have jobs to drain
    faulthandler.enable()  # a crash leaves the Python side of its stack in the log
    worker = end_to_worker(descriptor)
    config = worker.receive()
    log_file = os.fdopen(log_descriptor, "w", buffering=1)
    configure(config["log_level"], stream=log_file, as_text=config["log_text"])
    log_uncaught()
    network = sandbox.leave_network()
    sandbox.give_up_rights()
    sandbox.adopt()
    parts = sandbox.survey(network) - set(config["lacking"])
    sandbox.hide()
    if "system calls" in parts:
        system_calls.prepare(programs=bool(config["programs"]))
    registry = _registry(config["processors"])
    preload([*PRELOAD, *config["preload"]])
    try:
        worker.send("ready", network=network, parts=sorted(parts))
        private = tuple(map(Path, config["private"]))
        sizes = int(config["memory_bytes"]), int(config["file_bytes"])
        template = TemplateServer(registry, *sizes, private, parts, bool(config["programs"]), log_descriptor)
        serve(worker, template, registry)
    except Closed:
        return  # the worker has ended


def serve(worker: Wire, template: TemplateServer, registry: Registry) -> None:
    """Fork templates and report their ends, until `Closed`."""
    children = Children()
    try:
        while True:
            _answer(worker, worker.receive(), children, template, registry)
    finally:
        children.end_all()


def _answer(
    worker: Wire, message: Mapping[str, Any], children: Children, template: TemplateServer, registry: Registry
) -> None:
    match message:
        case {"kind": "fork", "descriptor": int(descriptor), "processor": str(processor)}:
            preload_processor(registry, processor)

            def run() -> None:
                worker.close()
                template.serve(descriptor)

            worker.send("forked", pid=children.fork(run))
            os.close(descriptor)
        case {"kind": "preload", "processor": str(processor)}:
            preload_processor(registry, processor)
            worker.send("preloaded")
        case {"kind": "log", "descriptor": int(descriptor)}:
            os.dup2(descriptor, template.log_descriptor)
            os.close(descriptor)
            worker.send("logs")
        case {"kind": "end", "pid": int(pid), "grace_s": int() | float() as grace_s}:
            status, killed = children.end(pid, grace_s)
            worker.send("ended", status=status, killed=killed)


def preload(modules: Iterable[str]) -> None:
    """Import modules, so that forks share their memory; a failed import is logged only: the fork reports it again.

    `module:name` also reads a name, for modules that import what they name when it is read. All objects are frozen: a
    collection in a fork would touch, and so copy, every page.
    """
    for module in modules:
        try:
            EntryPoint("", module, "").load()
        except Exception as error:
            log.info("io.not_preloaded", module=module, error=repr(error))
    gc.collect()
    gc.freeze()


def _registry(more: dict[str, str]) -> Registry:
    registry = Registry.installed()
    for name, value in more.items():
        registry = registry.register(name, EntryPoint(name, value, GROUP))
    return registry


def preload_processor(registry: Registry, processor: str) -> None:
    """Import the module of a processor of Penstock, and what modules of Penstock behind it name in `PRELOAD`."""
    point = registry.processors.get(processor)
    if isinstance(point, EntryPoint) and point.module.startswith("penstock."):
        preload([point.module])
        own = [module for name, module in sys.modules.items() if name.startswith("penstock.")]
        wanted = dict.fromkeys(name for module in own for name in getattr(module, "PRELOAD", ()))
        preload(wanted)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
