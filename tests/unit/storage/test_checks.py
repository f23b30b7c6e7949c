"""Checks that a Redis is safe enough."""

from __future__ import annotations

import pytest

from penstock.storage.checks import redis_findings

SAFE = {"redis_version": "7.2.4", "aof_enabled": 1, "maxmemory_policy": "noeviction"}


def failing(info: dict[str, object], appendfsync: str | None = "always") -> list[str]:
    return [finding.name for finding in redis_findings(info, appendfsync) if not finding.ok]


def test_a_redis_that_keeps_what_it_answered_passes() -> None:
    assert failing(SAFE) == []


@pytest.mark.parametrize(
    ("change", "appendfsync", "name"),
    [
        ({"redis_version": "6.2.14"}, "always", "redis version"),
        ({"redis_version": "unknown"}, "always", "redis version"),
        ({"cluster_enabled": 1}, "always", "redis mode"),
        ({"aof_enabled": 0}, "always", "redis appendonly"),
        ({}, "everysec", "redis appendfsync"),
        ({}, None, "redis appendfsync"),
        ({"maxmemory_policy": "allkeys-lru"}, "always", "redis maxmemory-policy"),
    ],
)
def test_each_danger_is_named_with_what_to_do(change: dict[str, object], appendfsync: str | None, name: str) -> None:
    findings = redis_findings({**SAFE, **change}, appendfsync)

    (failed,) = [finding for finding in findings if not finding.ok]
    assert failed.name == name
    assert failed.remedy


def test_a_valkey_is_told_by_its_own_version() -> None:
    found = redis_findings({**SAFE, "valkey_version": "9.1.2", "server_name": "valkey"}, "always")
    assert [(f.ok, f.detail) for f in found if f.name == "redis version"] == [(True, "Valkey 9.1.2")]


def test_a_redis_that_says_nothing_fails_everywhere() -> None:
    assert len(failing({}, None)) == 4


@pytest.mark.parametrize("version", ["7.0.15", "8.0.0", "10.1"])
def test_newer_versions_pass(version: str) -> None:
    assert failing({**SAFE, "redis_version": version}) == []
