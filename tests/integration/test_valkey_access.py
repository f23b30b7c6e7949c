"""Access to a Redis: the embedded Valkey demands its password, a service with keys warns of an open one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.storage.checks import inspect_redis_access
from penstock.up.valkey import RECORD, Valkey, recorded_url
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "valkey"


@pytest.fixture
def embedded(folder: Path) -> Iterator[Valkey]:
    server = Valkey(folder, folder.parent / "valkey.log")
    server.start()
    yield server
    stop(server)


def stop(server: Valkey) -> None:
    server.terminate()
    wait_for(lambda: not server.alive(), "the server did not end")


def test_the_embedded_valkey_lets_nobody_in_without_its_password(embedded: Valkey, folder: Path) -> None:
    for password in (None, "", "wrong"):
        with (
            # A refused password counts as a lost connection, which redis-py tries again for seconds.
            Redis(port=embedded.port or 0, password=password, retry=Retry(NoBackoff(), 0)) as client,
            pytest.raises(redis.RedisError, match=r"(?i)auth|password"),
        ):
            client.config_set("maxmemory", "1mb")
    assert inspect_redis_access(embedded.url).ok
    with Redis.from_url(recorded_url(folder) or "") as client:
        assert client.ping()


def test_its_password_is_in_a_private_file_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    class Popen(psutil.Popen):
        def __init__(self, command: list[str], **options: Any) -> None:
            commands.append(command)
            super().__init__(command, **options)

    monkeypatch.setattr(psutil, "Popen", Popen)
    server = Valkey(folder, folder.parent / "valkey.log")
    server.start()
    try:
        password = json.loads((folder / RECORD).read_text())["password"]
        assert len(password) == 64
        assert (folder / RECORD).stat().st_mode & 0o777 == 0o600
        assert len(commands) == 1
        assert not any(password in word for words in commands for word in words)
        files = [path for path in folder.parent.rglob("*") if path.is_file()]
        assert [path.name for path in files if password.encode() in path.read_bytes()] == [RECORD]
    finally:
        stop(server)


def test_its_password_stays_over_restarts(embedded: Valkey, folder: Path) -> None:
    url = embedded.url
    stop(embedded)
    embedded.start()
    second = Valkey(folder, folder.parent / "valkey.log")
    second.start()
    assert (embedded.url, second.url, second.attached) == (url, url, True)


def test_a_server_that_answers_anybody_is_found(valkey: ValkeyProcess) -> None:
    found = inspect_redis_access(valkey.url)
    assert (found.ok, found.detail.startswith("it answers without a password")) == (False, True)
    with Redis.from_url(valkey.url) as client:
        client.config_set("requirepass", "secret")
        try:
            assert inspect_redis_access(valkey.url.replace("//", "//:secret@")).ok
        finally:
            client.config_set("requirepass", "")
