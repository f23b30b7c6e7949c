"""Puts of a local store that wait together share one sync, and are as durable as alone."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.errors import ObjectStoreUnavailable
from penstock.storage.objects.base import ObjectInfo, Put
from penstock.storage.objects.local import LocalStore
from penstock.storage.objects.local_syncs import GroupSyncs, Witness, has_syncfs, syncfs

TEXT = "text/plain"
MANY = list("abcdefgh")


class Disk:
    """A `sync_all` that waits at a gate, notes what it found in a store, and fails on request."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.found: list[tuple[int, int]] = []
        self.error: OSError | None = None

    def __call__(self, _: int) -> None:
        self.begun.release()
        assert self.gate.wait(60)
        drafts = [size_bytes(path) for path in (self.root / ".penstock" / "tmp").iterdir()]
        objects = [path for path in self.root.rglob("*.json") if path.is_file()]
        self.found.append((sum(drafts), len(objects)))
        if self.error:
            raise self.error


def size_bytes(path: Path) -> int:
    """Return the size of a draft, 0 for one that a put has just removed at its end."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def store(tmp_path: Path, disk: Disk) -> LocalStore:
    syncs = GroupSyncs(tmp_path, is_quick=lambda: True, sync_all=disk)
    return LocalStore(tmp_path, syncs=syncs)


def puts(*names: str) -> list[Put]:
    return [Put(f"jobs/{name}/request.json", b"12345", TEXT, if_absent=True) for name in names]


def test_contents_are_synced_before_their_names_and_names_before_the_end(store: LocalStore, disk: Disk) -> None:
    disk.gate.set()
    store.put_many(puts(*"abcdefgh"))
    assert disk.found == [(40, 0), (40, 8)]


def test_puts_that_wait_together_share_a_sync(store: LocalStore, disk: Disk) -> None:
    groups = [puts(*(f"{group}-{n}" for n in range(8))) for group in range(9)]
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(store.put_many, groups[0])
        assert disk.begun.acquire(timeout=10)
        others = [pool.submit(store.put_many, group) for group in groups[1:]]
        waited = wait_until(lambda: len(list((store.root / ".penstock" / "tmp").iterdir())) == 72)
        disk.gate.set()
        assert waited
        results = [each.result(10) for each in (first, *others)]
    assert all(isinstance(info, ObjectInfo) for infos in results for info in infos)
    assert len(disk.found) < 9  # alone, each of nine would sync twice


def wait_until(condition: Callable[[], bool]) -> bool:
    ticks = threading.Event()
    for _ in range(1000):
        if condition():
            return True
        ticks.wait(0.01)
    return False


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_fails_every_put_of_its_group(store: LocalStore, disk: Disk, code: int) -> None:
    disk.gate.set()
    disk.error = OSError(code, os.strerror(code))
    results = store.put_many(puts(*"abcdefgh"))
    assert all(isinstance(error, ObjectStoreUnavailable) for error in results)
    assert list(store.list("")) == []
    assert list((store.root / ".penstock" / "tmp").iterdir()) == []
    disk.error = None
    assert all(isinstance(info, ObjectInfo) for info in store.put_many(puts(*"abcdefgh")))


def test_an_interrupted_leader_fails_its_group(tmp_path: Path) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    syncs = GroupSyncs(tmp_path, is_quick=lambda: True, sync_all=interrupted)
    with pytest.raises(KeyboardInterrupt):
        syncs.sync(MANY, Witness(0, 0))
    with pytest.raises(KeyboardInterrupt):
        syncs.sync(MANY, Witness(0, 0))


def test_the_file_that_was_opened_first_witnesses_for_its_group(tmp_path: Path) -> None:
    seen: list[int] = []
    syncs = GroupSyncs(tmp_path, is_quick=lambda: True, sync_all=seen.append)
    syncs.sync(MANY, Witness(5, 50))
    assert seen == [50]
    assert min(Witness(7, 1), Witness(3, 9)).descriptor == 9


opened: list[str] = []


def note_opened(event: str, args: tuple[object, ...]) -> None:
    if event == "open":
        opened.append(str(args[0]))


def test_a_folder_that_puts_have_in_common_is_synced_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    sys.addaudithook(note_opened)
    opened.clear()
    store.put_many(puts("a", "b"))
    assert opened.count(f"{tmp_path}/jobs") == 1  # it is opened for its sync
    assert opened.count(f"{tmp_path}/jobs/a") == 1


def test_without_syncfs_each_file_is_synced(tmp_path: Path) -> None:
    def forbidden(_: int) -> None:
        raise AssertionError

    store = LocalStore(tmp_path, syncs=GroupSyncs(tmp_path, is_quick=lambda: False, sync_all=forbidden))
    stored = store.put_many(puts(*map(str, range(40))))
    assert all(isinstance(info, ObjectInfo) for info in stored)
    assert len(list(store.list("jobs/"))) == 40


def test_a_folder_that_is_gone_needs_no_sync(tmp_path: Path) -> None:
    syncs = GroupSyncs(tmp_path, is_quick=lambda: False)
    syncs.sync([str(tmp_path / "gone")], Witness(0, 0))
    syncs.sync([str(tmp_path), *(str(tmp_path / each) for each in MANY)], Witness(0, 0))


def test_syncfs_tells_its_error(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        syncfs(file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        syncfs(-1)


def test_a_file_system_that_the_kernel_does_not_name_has_no_syncfs(tmp_path: Path) -> None:
    assert not has_syncfs(tmp_path / "missing")
    assert not has_syncfs(Path("/proc"))
