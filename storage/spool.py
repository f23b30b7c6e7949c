"""Scratch space: a folder per process that is held by a lock, so that a dead one's files can be told and removed."""

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
    """Make a folder under the spool that ends with the block; first remove those whose process is gone."""
    spool.mkdir(parents=True, exist_ok=True)
    for folder in spool.iterdir():
        _remove_if_abandoned(folder)
    folder, descriptor = _held_folder(spool)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _held_folder(spool: Path) -> tuple[Path, int]:
    while True:
        folder = spool / uuid.uuid4().hex
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return folder, descriptor
        os.close(descriptor)  # somebody took it for an abandoned one before it was locked


def _remove_if_abandoned(folder: Path) -> None:
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return  # not such a folder, or one that is being made
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            log.info("spool.removed", folder=folder.name)
    finally:
        os.close(descriptor)
