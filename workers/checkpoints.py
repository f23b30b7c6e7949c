"""Checkpoints: files that a job's attempts save for the next attempt; they are deleted when the job ends.

A later attempt on any machine finds them. Checkpoints are no artifacts: users never see them, and only the processor
interprets their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from penstock.errors import ObjectNotFound, ObjectStoreUnavailable, ProcessorFailed
from penstock.jobs import JobKey
from penstock.processors.base import CHECKPOINT_NAME
from penstock.storage.objects.base import DEFAULT_CONTENT_TYPE, ObjectStore

#: Bytes of one checkpoint.
MAX_BYTES = 2**33

log = structlog.get_logger(__name__)


class Checkpoints(Protocol):
    """The checkpoints of one job, as an attempt sees them."""

    def found(self, prefix: str) -> Mapping[str, Path]:
        """Return the checkpoints whose names start with a prefix, as local files; raise `ObjectStoreUnavailable`."""
        ...

    def save(self, name: str, path: Path) -> None:
        """Save a file under a name that matches `CHECKPOINT_NAME`; it is durable afterwards if the store responds."""
        ...


@dataclass(frozen=True, slots=True)
class NoCheckpoints:
    """Checkpoints of a run that is never resumed."""

    def found(self, prefix: str) -> Mapping[str, Path]:  # noqa: ARG002  (the protocol names it)
        """Return nothing."""
        return {}

    def save(self, name: str, path: Path) -> None:
        """Save nothing."""


@dataclass(frozen=True, slots=True)
class StoredCheckpoints:
    """The checkpoints of a job in the object store."""

    objects: ObjectStore
    key: JobKey
    #: Folder for fetched checkpoints, created when needed.
    folder: Path
    #: Called with the number of checkpoints just saved, or with 0 when some were found.
    on_news: Callable[[int], None]
    #: The same object store for reading, whose calls may wait while it is away; None = `objects`.
    patiently: ObjectStore | None = None
    #: Kind of machine whose checkpoints are found: networks round differently elsewhere. Empty = of any machine.
    kind: str = ""

    @property
    def prefix(self) -> str:
        """The prefix of the checkpoints of this kind of machine."""
        return f"{self.key.checkpoints}{self.kind}/" if self.kind else self.key.checkpoints

    def found(self, prefix: str) -> Mapping[str, Path]:
        """Fetch the checkpoints whose names start with a prefix."""
        files: dict[str, Path] = {}
        objects = self.patiently or self.objects
        for info in objects.list(self.prefix + prefix):
            name = info.key.removeprefix(self.prefix)
            path = self.folder / name.replace("/", "-")
            if not CHECKPOINT_NAME.fullmatch(name) or info.size_bytes > MAX_BYTES:
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                objects.get_file(info.key, path, limit_bytes=MAX_BYTES)
            except ObjectNotFound:
                continue  # the job has just ended, and this attempt was not notified yet
            files[name] = path
        if files:
            log.info("checkpoints.found", count=len(files))
            self.on_news(0)
        return files

    def save(self, name: str, path: Path) -> None:
        """Upload a file. A later file of the same name replaces it: both hold the same work."""
        try:
            self.objects.put_file(self.prefix + name, path, content_type=DEFAULT_CONTENT_TYPE)
        except ObjectStoreUnavailable:
            log.warning("checkpoint.not_saved", name=name)
        else:
            self.on_news(1)

    def keep(self, name: str, text: str) -> None:
        """Upload a small text, which counts as no progress of the job."""
        if not CHECKPOINT_NAME.fullmatch(name):
            raise ProcessorFailed(f"the processor used an invalid checkpoint name: {name!r}")
        try:
            self.objects.put_bytes(self.prefix + name, text.encode(), content_type=DEFAULT_CONTENT_TYPE)
        except ObjectStoreUnavailable:
            log.warning("checkpoint.not_saved", name=name)
        else:
            self.on_news(0)


def forget_checkpoints(objects: ObjectStore, key: JobKey) -> None:
    """Delete a job's checkpoints; if the store does not respond, the keeper deletes them later."""
    try:
        objects.delete_prefix(key.checkpoints)
    except ObjectStoreUnavailable:
        log.warning("checkpoints.not_deleted", job=str(key))
