"""Scratch space: a folder per worker, held by a lock, so that a dead worker's files can be told and removed."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

LOCK = ".lock"

log = structlog.get_logger(__name__)


@contextmanager
def own_folder(spool: Path) -> Iterator[Path]:
    """Make a folder for this process under the spool; first remove those whose process is gone."""
    spool.mkdir(parents=True, exist_ok=True)
    for folder in spool.iterdir():
        _remove_if_abandoned(folder)
    folder = spool / uuid.uuid4().hex
    folder.mkdir(mode=0o700)
    descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return  # not a worker's folder, or one that is being made
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            log.info("spool.removed", folder=folder.name)
    finally:
        os.close(descriptor)
