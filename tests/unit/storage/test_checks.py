"""Checks that a Redis is safe enough, and that a bucket lets browsers read and write."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.config_tables import S3
from penstock.storage.checks import inspect_browser_access, redis_findings
from penstock.storage.objects.opening import open_store
from tests.support.web_server import Server, reply

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


PAGE = "https://jobs.example.org"


def allowing(origin: str, methods: str) -> bytes:
    return reply(200, Access_Control_Allow_Origin=origin, Access_Control_Allow_Methods=methods)


@pytest.mark.parametrize(
    ("answers", "doubtful", "words"),
    [
        ([allowing(PAGE, "GET, PUT")], False, "may read and write"),
        ([allowing("*", "GET"), allowing("*", "PUT")], False, "may read and write"),
        ([allowing(PAGE, "GET"), reply(403)], True, "does not let browsers write"),
        ([reply(403)], True, "does not let browsers read and write"),
        ([allowing("https://elsewhere.example.org", "GET, PUT")], True, "read and write"),
    ],
)
def test_a_store_is_judged_by_its_answers(tmp_path: Path, answers: list[bytes], doubtful: bool, words: str) -> None:
    with Server(*answers) as server:
        s3 = S3(endpoint_url=f"http://127.0.0.1:{server.port}", access_key_id="a", secret_access_key="b")
        store = open_store("s3://results", Settings(data=tmp_path, s3=s3))
        found = inspect_browser_access(store, f"{PAGE}/penstock")
    assert (found.ok, found.doubtful) == (True, doubtful)
    assert words in found.detail
    asked = [request.decode() for request in server.requests]
    assert [request.split()[0] for request in asked] == ["OPTIONS", "OPTIONS"]
    assert all(f"Origin: {PAGE}\r\n".lower() in request.lower() for request in asked)
    assert "access-control-request-headers: range" in asked[0].lower()
    assert "access-control-request-headers: content-md5,content-type,if-none-match" in asked[1].lower()


def test_a_store_that_does_not_answer_is_not_judged(tmp_path: Path) -> None:
    s3 = S3(endpoint_url="http://127.0.0.1:1", access_key_id="a", secret_access_key="b")
    found = inspect_browser_access(open_store("s3://results", Settings(data=tmp_path, s3=s3)), PAGE)
    assert (found.ok, found.unchecked) == (True, True)
