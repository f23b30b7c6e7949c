"""Scratch folders of attempts, each in a base folder: an IO process may change one base folder.

A base folder is one tenant's, for one model.
"""

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

#: Number of base folders from which empty ones are removed, and seconds that they must have been empty: longer than an
#: IO process is used.
MANY, EMPTY_S = 1000, 300.0
#: Name of the folder of an attempt in which its processor makes files.
ARTIFACTS = "artifacts"


class ScratchFolders:
    """The scratch folders of a worker. Safe to use from many threads."""

    def __init__(self, spool: Path, *, shared: bool, many: int = MANY) -> None:
        """Make base folders in `spool`: `shared` by the jobs of one tenant and model, or each for one attempt.

        Their paths are absolute, without links.
        """
        self._spool = spool.resolve()
        self._shared = shared
        self._many = many
        self._lock = threading.Lock()
        #: Attempts until empty base folders are looked for again.
        self._looks_in = 0
        #: The names of the folders of running attempts, by base folder.
        self._folders: dict[Path, set[str]] = defaultdict(set)

    @contextmanager
    def folder(self, claim: Claim) -> Iterator[Path]:
        """Yield the path of an attempt's folder, which is not made yet.

        At the end, the folder is removed, and so is everything in the base folder that no other attempt needs. Raises
        nothing of its own.
        """
        base, name = self._base(claim), f"{claim.key.id}-{claim.fence}"
        with self._lock:
            self._remove_empty()
            self._folders[base].add(name)
        try:
            yield base / name
        finally:
            with self._lock:
                self._folders[base].discard(name)
                left = set(_entries(base)) - self._folders[base]
                if not self._folders[base]:
                    del self._folders[base]
            for each in left:
                _remove(base / each)
            if not self._shared:
                _remove(base)

    def _base(self, claim: Claim) -> Path:
        shared = [claim.key.tenant, claim.submission.model]
        return self._spool / _name(shared if self._shared else [*shared, claim.key.id, str(claim.fence)])

    def _remove_empty(self) -> None:
        """Look for empty base folders, once in as many attempts as a tenth of the number that may stay."""
        self._looks_in -= 1
        if self._looks_in > 0:
            return
        self._looks_in = self._many // 10
        bases = list(self._spool.glob("base-*"))
        if len(bases) < self._many:
            return
        for base in bases:
            with suppress(OSError):  # not empty
                if base not in self._folders and time.time() - base.stat().st_mtime > EMPTY_S:
                    base.rmdir()


def _name(parts: list[str]) -> str:
    return "base-" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _entries(base: Path) -> list[str]:
    try:
        return [each.name for each in base.iterdir()]
    except FileNotFoundError:  # no file was needed
        return []
    except OSError:  # a processor may have changed its mode
        _unlock(base)
    with suppress(OSError):
        return [each.name for each in base.iterdir()]
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
