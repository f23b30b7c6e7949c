"""The fork server: a process that imports what processors need once, and forks a template for each model.

`start.py` starts it. It has one thread and imports only Penstock's own processors: a plugin that crashes on import does
so in a template. For each package of processors it forks another fork server, since a fork costs the more the more is
imported: GDAL doubles it. Each ends with its worker, and its forks end with it.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path

import structlog

from penstock.log import configure, log_uncaught
from penstock.processors.registry import GROUP, Registry
from penstock.workers.io import sandbox, system_calls
from penstock.workers.io.channel import Channel, Disconnected
from penstock.workers.io.children import Children
from penstock.workers.io.template import Template

#: Modules that nearly every processor imports.
PRELOAD = ("numpy", "PIL.Image")

log = structlog.get_logger(__name__)


def main(descriptor: int, log_descriptor: int) -> None:
    """Serve the worker at the other end of a socket until it ends; the log goes to a descriptor of its own."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when to end: it may have jobs to drain
    faulthandler.enable()  # a crash leaves the Python side of its stack in the log
    worker = Channel(socket.socket(fileno=descriptor), patient=True)
    config = worker.receive().header
    configure(config["log_level"], stream=os.fdopen(log_descriptor, "w", buffering=1))
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
    packages = _own_packages(registry)
    try:
        worker.send("ready", network=network, parts=sorted(parts), packages=packages)
        private = tuple(map(Path, config["private"]))
        sizes = int(config["memory_bytes"]), int(config["file_bytes"])
        template = Template(registry, *sizes, private, parts, bool(config["programs"]), log_descriptor)
        serve(worker, template, _modules(registry, packages))
    except Disconnected:
        return  # the worker has ended


def serve(worker: Channel, template: Template, modules: Mapping[str, Sequence[str]]) -> None:
    """Fork templates, and fork servers for packages of processors, and report their ends, until `Disconnected`."""
    children = Children()
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, every page
    try:
        _serve(worker, children, template, modules)
    finally:
        children.end_all()


def _serve(worker: Channel, children: Children, template: Template, modules: Mapping[str, Sequence[str]]) -> None:
    while True:
        message = worker.receive()
        match message.kind, message.descriptor:
            case "fork", int(descriptor):
                package = message.header.get("package")

                def run(descriptor: int = descriptor, package: str | None = package) -> None:
                    worker.close()
                    if package is None:
                        template.serve(descriptor)
                    else:
                        _serve_package(descriptor, template, modules[package])

                worker.send("forked", pid=children.fork(run))
                os.close(descriptor)
            case "log", int(descriptor):
                os.dup2(descriptor, template.log_descriptor)
                os.close(descriptor)
                worker.send("logs")
            case "end", _:
                status, killed = children.end(message.header["pid"], message.header["grace_s"])
                worker.send("ended", status=status, killed=killed)


def _serve_package(descriptor: int, template: Template, modules: Sequence[str]) -> None:
    """Be the fork server of a package of processors."""
    sandbox.adopt()
    worker = Channel(socket.socket(fileno=descriptor), patient=True)
    preload(modules)
    with suppress(Disconnected):
        worker.send("ready")
        serve(worker, template, {})


def preload(modules: Iterable[str]) -> None:
    """Import modules, so that forks share their memory; a failed import is logged only: the fork reports it again."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:
            log.info("io.not_preloaded", module=module, error=repr(error))


def _registry(more: dict[str, str]) -> Registry:
    registry = Registry.installed()
    for name, value in more.items():
        registry = registry.register(name, EntryPoint(name, value, GROUP))
    return registry


def _own_packages(registry: Registry) -> dict[str, str]:
    """Return the packages of Penstock's own processors, by processor."""
    points = ((name, point) for name, point in registry.processors.items() if isinstance(point, EntryPoint))
    return {name: point.module.rpartition(".")[0] for name, point in points if point.module.startswith("penstock.")}


def _modules(registry: Registry, packages: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the modules of each package's processors."""
    modules: dict[str, list[str]] = {}
    for name, package in packages.items():
        modules.setdefault(package, []).append(registry.processors[name].module)
    return modules
