"""The checks against real servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis
from structlog.testing import capture_logs

from penstock.config import Settings
from penstock.errors import ConfigError, RedisUnavailable
from penstock.storage.base import ObjectInfo
from penstock.storage.checks import inspect_object_store, inspect_redis, require_durable_redis
from penstock.storage.local import LocalStore
from tests.valkey import ValkeyProcess


def test_our_own_server_is_durable(valkey: ValkeyProcess) -> None:
    require_durable_redis(Settings(redis_url=valkey.url))

    assert all(finding.ok for finding in inspect_redis(valkey.url))


def test_a_forgetful_server_is_refused_and_only_warned_of_in_development(valkey: ValkeyProcess) -> None:
    with Redis.from_url(valkey.url) as client:
        client.config_set("appendfsync", "everysec")
        try:
            with capture_logs() as refused, pytest.raises(ConfigError, match="appendfsync is everysec"):
                require_durable_redis(Settings(redis_url=valkey.url))
            with capture_logs() as warned:
                require_durable_redis(Settings(redis_url=valkey.url, dev=True))
        finally:
            client.config_set("appendfsync", "always")
    assert refused == []  # whoever catches the error says it, once
    assert [entry["check"] for entry in warned] == ["redis appendfsync"]
    assert all(finding.ok for finding in inspect_redis(valkey.url))


def test_no_server_and_no_address_are_told_apart() -> None:
    with pytest.raises(RedisUnavailable):
        inspect_redis("redis://127.0.0.1:1/0", patience_s=0)
    with pytest.raises(ConfigError, match="redis_url"):
        inspect_redis("http://127.0.0.1/", patience_s=0)


def test_an_object_store_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "objects")

    assert inspect_object_store(store, "file:///here").ok
    assert list(store.list("")) == []


def test_an_object_store_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder should be")

    finding = inspect_object_store(LocalStore(tmp_path / "objects"), "file:///here")

    assert not finding.ok
    assert finding.remedy


def test_an_object_store_that_forgets_who_was_first_is_found(tmp_path: Path) -> None:
    class Careless(LocalStore):
        def put_bytes(self, key: str, data: bytes, *, content_type: str, if_absent: bool = False) -> ObjectInfo:  # noqa: ARG002
            return super().put_bytes(key, data, content_type=content_type)

    finding = inspect_object_store(Careless(tmp_path / "objects"), "file:///here")

    assert (finding.ok, "durability" in finding.remedy) == (False, True)
