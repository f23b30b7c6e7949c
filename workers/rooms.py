"""Scratch folders of attempts, in rooms: the folders that one IO process may change are one tenant's, for one model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from penstock.intake.local_media import FOLDER_PREFIX
from penstock.jobs import Claim

#: Number of rooms from which empty ones are removed, and seconds that they must have been empty: longer than an IO
#: process is used.
MANY, EMPTY_S = 1000, 300.0
#: Seconds without a change after which the state of a folder is remembered. File systems round the time of a change,
#: some to 2 s: a second change within one step of that clock would not show.
RESTED_S = 2.5
#: Name of the folder of an attempt in which its processor makes files.
ARTIFACTS = "artifacts"


#: Device, inode number and time of the last change (`ctime`, in nanoseconds) of each folder.
_State: TypeAlias = tuple[tuple[int, int, int], ...]


class Rooms:
    """The rooms of a worker. Safe to use from many threads."""

    def __init__(
        self, spool: Path, *, shared: bool, many: int = MANY, clock: Callable[[], float] = time.time
    ) -> None:  # fmt: skip
        """Make rooms in `spool`: for the jobs of one tenant and model if they are `shared`, else for one attempt.

        Their paths are absolute, without links. `clock` returns the seconds since the epoch.
        """
        self._clock = clock
        self._spool = spool.resolve()
        self._shared = shared
        self._many = many
        self._lock = threading.Lock()
        #: Attempts until empty rooms are looked for again.
        self._looks_in = 0
        #: The names of the folders of running attempts, by room.
        self._folders: dict[Path, set[str]] = defaultdict(set)
        #: Folders that earlier attempts left as they found them, by room and name: a new one costs more than a check.
        self._spare: dict[Path, dict[str, Path]] = defaultdict(dict)
        #: State of each folder when it was clean, and of each room with the names of its entries; only states that are
        #: remembered.
        self._clean: dict[Path, _State] = {}
        self._listed: dict[Path, tuple[_State, frozenset[str]]] = {}
        #: The rooms of jobs, by tenant and model.
        self._rooms: dict[tuple[str, str], Path] = {}

    @contextmanager
    def folder(self, claim: Claim) -> Iterator[Path]:
        """Yield the path of an attempt's folder in its room, which is empty or not made yet.

        At the end, fetched media are removed from the folder. If nothing else has changed in the folder of a shared
        room, a later attempt uses it again; otherwise it is removed. So is everything in the room that no attempt
        needs. Raises nothing of its own.
        """
        room = self._room(claim)
        with self._lock:
            self._remove_empty()
            spare = self._spare[room]
            name, folder = spare.popitem() if spare else _new_folder(room, claim)
            self._folders[room].add(name)
        try:
            yield folder
        finally:
            clean = self._shared and self._is_clean(folder)
            state = _state(room)
            with self._lock:
                self._folders[room].discard(name)
                if clean:
                    self._spare[room][name] = folder
                left = self._entries(room, state) - self._folders[room] - self._spare[room].keys()
                if not self._folders[room]:
                    del self._folders[room]
                if not self._spare[room]:
                    del self._spare[room]
            for each in left:
                _remove(room / each)
            if not self._shared:
                _remove(room)

    def _is_clean(self, folder: Path) -> bool:
        """Return `_is_clean` of a folder, from memory if neither it nor its folder of artifacts has changed since."""
        state = _state(folder, f"{folder}/{ARTIFACTS}")
        if state is not None and self._clean.get(folder) == state:
            return True
        clean = _is_clean(folder)
        if clean and state is not None and self._has_rested(state):
            self._clean[folder] = state
        else:
            self._clean.pop(folder, None)
        return clean

    def _entries(self, room: Path, state: _State | None) -> frozenset[str]:
        """Return the names in a room, from memory if `state` is the one remembered. The lock must be held."""
        if state is not None and (known := self._listed.get(room)) is not None and known[0] == state:
            return known[1]
        found = frozenset(_entries(room))
        if self._shared and state is not None and self._has_rested(state):
            self._listed[room] = state, found
        else:
            self._listed.pop(room, None)
        return found

    def _has_rested(self, state: _State) -> bool:
        """Return True if every later state will differ from this one: it is older than a step of the clock."""
        changed_s = max(changed_ns for _, _, changed_ns in state) / 1e9
        return 0 < changed_s < self._clock() - RESTED_S

    def _room(self, claim: Claim) -> Path:
        tenant, model = claim.key.tenant, claim.submission.model
        if not self._shared:
            return self._spool / _name([tenant, model, claim.key.id, str(claim.fence)])
        found = self._rooms.get((tenant, model))
        if found is None:
            if len(self._rooms) >= self._many:
                self._rooms.clear()
            found = self._rooms[tenant, model] = self._spool / _name([tenant, model])
        return found

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
                    for spare in self._spare.pop(room, {}).values():
                        self._clean.pop(spare, None)
                        _remove(spare)
                    self._listed.pop(room, None)
                    room.rmdir()


def _name(parts: list[str]) -> str:
    return "room-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _new_folder(room: Path, claim: Claim) -> tuple[str, Path]:
    name = f"{claim.key.id}-{claim.fence}"
    return name, room / name


def _state(*folders: Path | str) -> _State | None:
    """Return the identity of folders and the time of their last change; None if one is missing or is no folder.

    Making, removing or renaming an entry of a folder, or changing its mode, sets this time (`ctime`) to the current
    one. No process can set another time.
    """
    try:
        found = [os.lstat(folder) for folder in folders]
    except OSError:
        return None
    if not all(stat.S_ISDIR(each.st_mode) for each in found):
        return None
    return tuple((each.st_dev, each.st_ino, each.st_ctime_ns) for each in found)


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
