"""What a job's attempts save for each other: files beside its artifacts, until it is over.

A successor on any machine finds them, whoever made them. They are no artifacts: nobody sees them, and what is in them
is for the processor to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from penstock.errors import ObjectNotFound, ObjectStoreUnavailable
from penstock.jobs import JobKey
from penstock.processors.base import CHECKPOINT_NAME
from penstock.storage.base import DEFAULT_CONTENT_TYPE, ObjectStore

#: Of one file.
MAX_BYTES = 2**33

log = structlog.get_logger(__name__)


class Checkpoints(Protocol):
    """The checkpoints of one job, as an attempt sees them."""

    def found(self, prefix: str) -> Mapping[str, Path]:
        """Return those whose names have a prefix, as local files; raise `ObjectStoreUnavailable`."""
        ...

    def save(self, name: str, path: Path) -> None:
        """Save a file under a name that matches `CHECKPOINT_NAME`: durable when this returns, if the store answers."""
        ...


@dataclass(frozen=True, slots=True)
class NoCheckpoints:
    """Of a run that nobody would continue."""

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
    #: Where to put what is found; made when it is needed.
    folder: Path
    #: Called with how many were just saved, or with 0 when some were found.
    on_news: Callable[[int], None]

    def found(self, prefix: str) -> Mapping[str, Path]:
        """Fetch those whose names have a prefix."""
        files: dict[str, Path] = {}
        for info in self.objects.list(self.key.checkpoints + prefix):
            name = info.key.removeprefix(self.key.checkpoints)
            path = self.folder / str(len(files))
            if not CHECKPOINT_NAME.fullmatch(name) or info.size_bytes > MAX_BYTES:
                continue
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self.objects.get_file(info.key, path, limit_bytes=MAX_BYTES)
            except ObjectNotFound:
                continue  # the job has just ended, and this attempt does not know
            files[name] = path
        if files:
            log.info("checkpoints.found", count=len(files))
            self.on_news(0)
        return files

    def save(self, name: str, path: Path) -> None:
        """Put a file. Later ones of the same name replace it: it is the same work."""
        try:
            self.objects.put_file(self.key.checkpoints + name, path, content_type=DEFAULT_CONTENT_TYPE)
        except ObjectStoreUnavailable:
            log.warning("checkpoint.not_saved", name=name)
        else:
            self.on_news(1)


def forget_checkpoints(objects: ObjectStore, key: JobKey) -> None:
    """Delete what a job's attempts saved; where the store does not answer, the keeper does it later."""
    try:
        objects.delete_prefix(key.checkpoints)
    except ObjectStoreUnavailable:
        log.warning("checkpoints.left", job=str(key))
