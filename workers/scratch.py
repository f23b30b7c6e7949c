"""Scratch folders of attempts, in rooms: the folders that one IO process may change are one tenant's, for one model."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.jobs import Claim

#: Number of rooms from which empty ones are removed, and seconds that they must have been empty: longer than an IO
#: process is used.
MANY, EMPTY_S = 1000, 300.0
#: Name of the folder of an attempt in which its processor makes files.
ARTIFACTS = "artifacts"


class ScratchFolders:
    """The rooms of a worker. Safe to use from many threads."""

    def __init__(self, spool: Path, *, shared: bool, many: int = MANY) -> None:
        """Make rooms in `spool`: for the jobs of one tenant and model if they are `shared`, else for one attempt.

        Their paths are absolute, without links.
        """
        self._spool = spool.resolve()
        self._shared = shared
        self._many = many
        self._lock = threading.Lock()
        #: Attempts until empty rooms are looked for again.
        self._looks_in = 0
        #: The names of the folders of running attempts, by room.
        self._folders: dict[Path, set[str]] = defaultdict(set)

    @contextmanager
    def folder(self, claim: Claim) -> Iterator[Path]:
        """Yield the path of an attempt's folder in its room, which is not made yet.

        At the end, the folder is removed, and so is everything in the room that no other attempt needs. Raises nothing
        of its own.
        """
        room, name = self._room(claim), f"{claim.key.id}-{claim.fence}"
        with self._lock:
            self._remove_empty()
            self._folders[room].add(name)
        try:
            yield room / name
        finally:
            with self._lock:
                self._folders[room].discard(name)
                left = set(_entries(room)) - self._folders[room]
                if not self._folders[room]:
                    del self._folders[room]
            for each in left:
                _remove(room / each)
            if not self._shared:
                _remove(room)

    def _room(self, claim: Claim) -> Path:
        shared = [claim.key.tenant, claim.submission.model]
        return self._spool / _name(shared if self._shared else [*shared, claim.key.id, str(claim.fence)])

    def _remove_empty(self) -> None:
        """Look for empty rooms, once in as many attempts as a tenth of the rooms that may stay."""
        self._looks_in -= 1
        if self._looks_in > 0:
            return
        self._looks_in = self._many // 10
        rooms = list(self._spool.glob("room-*"))
        if len(rooms) < self._many:
            return
        for room in rooms:
            with suppress(OSError):  # not empty
                if room not in self._folders and time.time() - room.stat().st_mtime > EMPTY_S:
                    room.rmdir()


def _name(parts: list[str]) -> str:
    return "room-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _entries(room: Path) -> list[str]:
    try:
        return [each.name for each in room.iterdir()]
    except FileNotFoundError:  # no file was needed
        return []
    except OSError:  # a processor may have changed its mode
        _unlock(room)
    with suppress(OSError):
        return [each.name for each in room.iterdir()]
    return []


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():  # a processor may have changed the modes of its folders
        _unlock(path)
        shutil.rmtree(path, ignore_errors=True)


def _unlock(folder: Path) -> None:
    """Let this user list and change a folder and those under it."""
    with suppress(OSError):
        folder.chmod(0o700)
        for each in folder.iterdir():
            if each.is_dir() and not each.is_symlink():
                _unlock(each)
