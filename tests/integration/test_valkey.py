"""The server that the other tests rely on keeps what it answered."""

from __future__ import annotations

from redis import Redis

from tests.support.valkey import ValkeyProcess


def test_an_answered_write_survives_sigkill(valkey: ValkeyProcess) -> None:
    with Redis.from_url(valkey.url) as client:
        client.set("answered", "yes")
    first = valkey.pid
    valkey.kill()
    valkey.restart()
    with Redis.from_url(valkey.url, decode_responses=True) as client:
        assert client.get("answered") == "yes"
    assert valkey.pid != first
