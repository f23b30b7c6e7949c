"""Grouped puts: those that wait at the same time are one call of the store, and each has its own result."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import ObjectExists, PenstockError
from penstock.storage.journal.grouped_puts import GROUPS, GroupedPuts
from penstock.storage.objects.base import ObjectInfo, Put
from penstock.storage.objects.local import LocalStore


class Slow(LocalStore):
    """A store whose puts wait, and which notes how many came together."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.goes_on = threading.Event()
        self.groups: list[int] = []

    def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:
        self.goes_on.wait(10)
        return super().put_bytes(key, data, content_type=content_type, if_absent=if_absent)

    def put_many(self, puts: Sequence[Put]) -> Sequence[ObjectInfo | PenstockError]:
        self.groups.append(len(puts))
        self.goes_on.wait(10)
        return super().put_many(puts)


def put(key: str) -> Put:
    return Put(key, b"data", "text/plain", if_absent=True)


async def test_puts_that_wait_are_one_group(tmp_path: Path) -> None:
    store, puts = Slow(tmp_path), GroupedPuts()
    first = []
    for number in range(GROUPS):
        first.append(asyncio.create_task(puts.put(store, put(f"first{number}"))))
        await asyncio.sleep(0.01)
    rest = [asyncio.create_task(puts.put(store, put(f"{number}"))) for number in range(5)]
    await asyncio.sleep(0.01)
    store.goes_on.set()
    infos = await asyncio.gather(*first, *rest)
    assert [info.key for info in infos[GROUPS:]] == [str(number) for number in range(5)]
    assert store.groups == [5]


async def test_an_error_is_that_of_its_put_alone(tmp_path: Path) -> None:
    store, puts = LocalStore(tmp_path), GroupedPuts()
    found = await asyncio.gather(*(puts.put(store, put(key)) for key in ("a", "a", "b")), return_exceptions=True)
    assert sum(isinstance(each, ObjectExists) for each in found) == 1
    assert store.get_bytes("b", limit_bytes=9) == b"data"


async def test_a_cancelled_put_fails_no_other(tmp_path: Path) -> None:
    store, puts = Slow(tmp_path), GroupedPuts()
    left, stays = asyncio.create_task(puts.put(store, put("a"))), asyncio.create_task(puts.put(store, put("b")))
    await asyncio.sleep(0.01)
    left.cancel()
    store.goes_on.set()
    assert (await stays).key == "b"
    with pytest.raises(asyncio.CancelledError):
        await left


async def test_stores_are_not_mixed(tmp_path: Path) -> None:
    one, other, puts = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "other"), GroupedPuts()
    await asyncio.gather(puts.put(one, put("a")), puts.put(other, put("a")))
    assert one.get_bytes("a", limit_bytes=9) == other.get_bytes("a", limit_bytes=9)
