"""The template of a model: a process that has loaded the model's processor, and forks an IO process for each tenant.

It runs the processor's code on nothing that a user sent, so its forks begin clean.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from penstock.errors import PenstockError
from penstock.functions.wire import Closed, Wire
from penstock.models import Model
from penstock.processors.base import IOProcessor
from penstock.processors.registry import Registry
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.runners import Runners
from penstock.workers.io import reports, sandbox
from penstock.workers.io.children import Children
from penstock.workers.io.ends import end_to_worker
from penstock.workers.io.libraries import library_paths, model_paths, outermost, sparing
from penstock.workers.io.sandbox import Confinement
from penstock.workers.io.worker import IOWorker
from penstock.workers.processing import dummy_work, work_to_json

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TemplateServer:
    """The parts of every template, inherited from the fork server."""

    registry: Registry
    memory_bytes: int
    file_bytes: int
    #: Folders that no fork may read, even where a model's folder contains them.
    private: tuple[Path, ...]
    parts: frozenset[str]
    #: True where forks may start processes.
    programs: bool
    #: Descriptor of the log.
    log_descriptor: int

    def serve(self, descriptor: int) -> None:
        """Answer the worker's requests about one model until it closes the connection."""
        sandbox.adopt()
        wire, children = end_to_worker(descriptor), Children()
        try:
            model = Model.model_validate(wire.receive()["model"])
            _Serving(self, model, wire, children).serve()
        except Closed:
            children.end_all()


class _Serving:
    """A template at work."""

    def __init__(self, template: TemplateServer, model: Model, wire: Wire, children: Children) -> None:
        self._template = template
        self._model = model
        self._wire = wire
        self._children = children
        self._processor: IOProcessor[Any, Any] | None = None
        self._reads: tuple[Path, ...] = ()

    def serve(self) -> None:
        """Answer requests until `Closed`."""
        while True:
            message = self._wire.receive()
            with structlog.contextvars.bound_contextvars(**message.get("log", {})):
                self._answer(message)

    def _answer(self, message: Mapping[str, Any]) -> None:
        match message:
            case {"kind": "fork", "descriptor": int(descriptor)}:
                self._wire.send("forked", pid=self._children.fork(self._io_process(descriptor, message)))
                os.close(descriptor)
            case {"kind": "end", "pid": int(pid), "grace_s": int() | float() as grace_s}:
                status, killed = self._children.end(pid, grace_s)
                self._wire.send("ended", status=status, killed=killed)
            case {"kind": str(kind)}:
                try:
                    self._do(kind, message)
                except Closed:
                    raise
                except BaseException as error:
                    if not isinstance(error, PenstockError):
                        log.exception("processor.failed")
                    self._wire.send("failed", **reports.to_json(error, self._template.memory_bytes))

    def _do(self, kind: str, message: Mapping[str, Any]) -> None:
        match kind:
            case "load":
                if message["now"]:
                    self._loaded()
                paths = outermost((*library_paths(), *model_paths(self._model.source)))
                self._reads = sparing(paths, self._template.private)
                gc.collect()
                gc.freeze()
                self._wire.send("loaded", threads=sandbox.threads())
            case "entry":
                sandbox.limit(self._template.memory_bytes)
                entry = checked_entry(self._template.registry, Runners.installed(), self._model)
                self._wire.send("entry", entry=entry.model_dump(mode="json"))
            case "dummy":
                sandbox.limit(self._template.memory_bytes)
                processor = self._template.registry.processor_for(self._model)
                made = dummy_work(processor, self._model, Path(message["folder"]))
                self._wire.send("dummy", **work_to_json(made))

    def _io_process(self, descriptor: int, message: Mapping[str, Any]) -> Callable[[], None]:
        template, room = self._template, Path(message["room"])
        confinement = Confinement(
            template.memory_bytes,
            template.file_bytes,
            reads=(*sparing(self._reads, [room]), *map(Path, message["reads"])),
            writes=(room,),
            parts=template.parts,
            programs=template.programs,
        )

        def run() -> None:
            self._wire.close()
            confinement.enter()
            loaded = self._processor is not None
            IOWorker(descriptor, self._model, self._loaded, template.memory_bytes, loaded=loaded).work()

        return run

    def _loaded(self) -> IOProcessor[Any, Any]:
        """Return the processor; a fork loads it if the template could not."""
        if self._processor is None:
            self._processor = self._template.registry.processor_for(self._model)
        return self._processor
