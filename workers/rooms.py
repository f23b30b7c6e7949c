"""Scratch folders of attempts, in rooms: the folders that one IO process may change are one tenant's, for one model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.intake.local_media import FOLDER_PREFIX
from penstock.jobs import Claim

#: Number of rooms from which empty ones are removed, and seconds that they must have been empty: longer than an IO
#: process is used.
MANY, EMPTY_S = 1000, 300.0
#: Name of the folder of an attempt in which its processor makes files.
ARTIFACTS = "artifacts"


class Rooms:
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
        #: The folders of running attempts, by room.
        self._folders: dict[Path, set[Path]] = defaultdict(set)
        #: Folders that earlier attempts left as they found them, by room: making one anew costs more than a look.
        self._spare: dict[Path, list[Path]] = defaultdict(list)

    @contextmanager
    def folder(self, claim: Claim) -> Iterator[Path]:
        """Yield the path of an attempt's folder in its room, which is empty or not made yet.

        At the end the folder is removed, unless it is as it was before but for fetched media, which are, and whatever
        else no attempt needs in the room.
        Raises nothing of its own.
        """
        room = self._spool / self._name(claim)
        with self._lock:
            self._remove_empty()
            spare = self._spare[room]
            folder = spare.pop() if spare else room / f"{claim.key.id}-{claim.fence}"
            self._folders[room].add(folder)
        try:
            yield folder
        finally:
            clean = self._shared and _is_clean(folder)
            with self._lock:
                self._folders[room].discard(folder)
                if clean:
                    self._spare[room].append(folder)
                left = _entries(room) - self._folders[room] - set(self._spare[room])
                if not self._folders[room]:
                    del self._folders[room]
            for path in left:
                _remove(path)
            if not self._shared:
                _remove(room)

    def _name(self, claim: Claim) -> str:
        parts = [claim.key.tenant, claim.submission.model]
        if not self._shared:
            parts += [claim.key.id, str(claim.fence)]
        return "room-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

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
                    for spare in self._spare.pop(room, ()):
                        _remove(spare)
                    room.rmdir()


def _is_clean(folder: Path) -> bool:
    """Remove fetched media from a folder; return True where nothing else is left but the empty one for artifacts.

    This user can change both folders then. No link is followed: a processor may have made one.
    """
    try:
        inside = _opened(folder)
        try:
            return _is_open(inside) and all(_is_unused(name, inside) for name in _names(inside))
        finally:
            os.close(inside)
    except OSError:
        return False


def _is_unused(name: str, inside: int) -> bool:
    """Remove a folder of media from a folder; return True for one, and for the empty folder of artifacts."""
    if name != ARTIFACTS and not name.startswith(FOLDER_PREFIX):
        return False
    found = _opened(name, inside)
    try:
        files = _names(found)
        if name == ARTIFACTS:
            return not files and _is_open(found)
        for file in files:
            os.unlink(file, dir_fd=found)  # an `OSError` where it is a folder
    finally:
        os.close(found)
    os.rmdir(name, dir_fd=inside)
    return True


def _opened(folder: Path | str, inside: int | None = None) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=inside)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as found:
        return [each.name for each in found]


def _is_open(folder: int) -> bool:
    return os.fstat(folder).st_mode & 0o700 == 0o700


def _entries(room: Path) -> set[Path]:
    try:
        return set(room.iterdir())
    except FileNotFoundError:  # no file was needed
        return set()
    except OSError:  # a processor may have changed its mode
        _unlock(room)
    with suppress(OSError):
        return set(room.iterdir())
    return set()


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
