"""Scratch space: a folder per process, held by a lock, so that the folders of dead processes can be removed.

A full disk is found by writing, not by asking for free space: quotas and limits of files count, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from penstock.errors import OutOfSpace, ServiceError

LOCK = ".lock"
#: Bytes that a check of a disk writes: one block of most file systems.
PROBE_BYTES = 4096
#: Error numbers of a full disk and of a used up quota.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

log = structlog.get_logger(__name__)


def is_full(error: OSError) -> bool:
    """Return True for a full disk, a used up quota, or a file at the limit of the file system or of this process."""
    return error.errno in FULL or error.errno == errno.EFBIG


def out_of_space(error: OSError) -> OutOfSpace:
    """Return the error of a scratch folder whose disk is full."""
    return OutOfSpace(f"the scratch disk is full ({error.strerror}); free space there or move `spool`")


def write_probe(folder: Path) -> None:
    """Write a small file into a folder and delete it; raise the `OSError` of a folder that cannot be written."""
    path = folder / uuid.uuid4().hex
    try:
        with path.open("xb", buffering=0) as file:
            file.write(bytes(PROBE_BYTES))
    finally:
        path.unlink(missing_ok=True)


def require_writable(spool: Path) -> None:
    """Return if the scratch folder can be written; raise `OutOfSpace` or another `ServiceError` if not."""
    try:
        spool.mkdir(parents=True, exist_ok=True)
        write_probe(spool)
    except OSError as error:
        if is_full(error):
            raise out_of_space(error) from error
        raise ServiceError(f"the scratch folder cannot be written: {error.strerror}; correct `spool`") from error


@contextmanager
def own_folder(spool: Path) -> Iterator[Path]:
    """Make a folder under the spool for the block; first remove the folders of dead processes."""
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
        os.close(descriptor)  # another process removed the folder as abandoned before it was locked


def _remove_if_abandoned(folder: Path) -> None:
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return  # not a scratch folder, or one without a lock yet
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            log.info("spool.removed", folder=folder.name)
    finally:
        os.close(descriptor)
