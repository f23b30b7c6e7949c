"""Environments of results: stored once, found by their digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.storage.journal.environments import STORED_AGAIN_S, Environments
from penstock.storage.objects.local import LocalStore

MADE: dict[str, Any] = {"model": {"name": "m"}, "machine": "cpu", "software": {"torch": "2"}}


@pytest.fixture
def objects(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "objects")


def stored(objects: LocalStore) -> Iterator[str]:
    return (info.key for info in objects.list("tenants/"))


def test_an_environment_is_stored_under_its_tenant_and_read_by_any_process(objects: LocalStore) -> None:
    name = Environments().keep(objects, "t", MADE)
    assert list(stored(objects)) == [f"tenants/t/environments/{name}.json"]
    assert Environments().read(objects, "t", name) == MADE
    assert Environments().read(objects, "other", name) is None


def test_equal_environments_have_one_name(objects: LocalStore) -> None:
    other = dict(reversed(MADE.items()))
    names = [Environments().keep(objects, "t", each) for each in (MADE, other, MADE | {"machine": "gpu"})]
    assert names[0] == names[1] != names[2]


def test_a_process_stores_an_environment_again_only_after_a_while(objects: LocalStore) -> None:
    now = [0.0]
    environments = Environments(clock=lambda: now[0])
    name = environments.keep(objects, "t", MADE)
    objects.delete_prefix("tenants/t/")  # the tenant is erased
    assert environments.keep(objects, "t", MADE) == name
    assert not list(stored(objects))
    now[0] += STORED_AGAIN_S + 1
    environments.keep(objects, "t", MADE)
    assert list(stored(objects)) == [f"tenants/t/environments/{name}.json"]


def test_what_was_read_is_known(objects: LocalStore) -> None:
    name, environments = Environments().keep(objects, "t", MADE), Environments()
    assert environments.known("t", name) is None
    environments.read(objects, "t", name)
    assert environments.known("t", name) == MADE
