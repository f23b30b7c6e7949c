"""The checks against real servers."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from redis import Redis
from structlog.testing import capture_logs

from penstock.config import Settings
from penstock.config_tables import S3
from penstock.errors import ConfigError, RedisUnavailable
from penstock.storage.checks import inspect_object_store, inspect_own_store, inspect_redis, require_durable_redis
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.local import LocalStore
from tests.support.valkey import ValkeyProcess, free_port, start_valkey
from tests.support.web_server import Server, reply


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


@pytest.fixture
def silent(valkey: ValkeyProcess) -> Iterator[str]:
    """Return the address of a user who may not read the configuration."""
    with Redis.from_url(valkey.url) as client:
        client.acl_setuser("silent", enabled=True, passwords=["+word"], keys=["*"], commands=["+@all", "-config"])
        yield valkey.url.replace("//", "//silent:word@")
        client.acl_deluser("silent")


def test_what_a_server_does_not_show_can_be_vouched_for(silent: str) -> None:
    with pytest.raises(ConfigError, match=r"appendfsync is cannot be read.*redis_durable = true"):
        require_durable_redis(Settings(redis_url=silent))
    with capture_logs() as warned:
        require_durable_redis(Settings(redis_url=silent, redis_durable=True))
    assert [(entry["event"], entry["check"]) for entry in warned] == [("redis.unsafe", "redis appendfsync")]


def test_nobody_vouches_for_what_a_server_shows(valkey: ValkeyProcess) -> None:
    with Redis.from_url(valkey.url) as client:
        client.config_set("appendfsync", "everysec")
        try:
            with pytest.raises(ConfigError, match="appendfsync is everysec"):
                require_durable_redis(Settings(redis_url=valkey.url, redis_durable=True))
        finally:
            client.config_set("appendfsync", "always")


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    server = start_valkey(tmp_path, cluster_enabled="yes", cluster_port=str(free_port()))
    try:
        with pytest.raises(ConfigError, match="redis mode is a cluster: use one primary"):
            require_durable_redis(Settings(redis_url=server.url))
    finally:
        server.stop()


def test_a_server_that_loads_its_data_is_waited_for(tmp_path: Path) -> None:
    server = start_valkey(tmp_path)
    with Redis.from_url(server.url) as client, client.pipeline(transaction=False) as pipeline:
        for n in range(10_000):  # it answers now and then while it loads so many
            pipeline.set(f"key {n}", n)
        pipeline.execute()
    server.stop()
    server = start_valkey(tmp_path, wait=False, key_load_delay="100")
    try:
        with capture_logs() as logs:
            assert all(finding.ok for finding in inspect_redis(server.url))
        assert "redis.loading" in {entry["event"] for entry in logs}
    finally:
        server.stop()


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


_HEADERS = {"ETag": '"e"', "Date": "Fri, 27 Nov 2026 12:00:00 GMT", "Connection": "close"}


class Bucket(Server):
    """A bucket over TLS whose server refuses checksum trailers, as some do (boto/boto3#4435)."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(self._said)
        self.tls = tls
        self._stored = b""

    def _said(self, connection: socket.socket) -> bytes:
        head, _, body = self.requests[-1].partition(b"\r\n\r\n")
        head = head.lower()
        size = int(head.partition(b"content-length: ")[2].split()[0]) if b"content-length: " in head else 0
        while len(body) < size:
            body += connection.recv(65536)
        if b"x-amz-trailer" in head:
            return _error(501, "NotImplemented")
        if not head.startswith(b"put"):
            is_read = head.startswith(b"get")
            return reply(200 if is_read else 204, self._stored if is_read else b"", **_HEADERS)
        if b"if-none-match" in head:
            return _error(412, "PreconditionFailed")
        self._stored = body
        return reply(200, **_HEADERS)


def _error(status: int, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return reply(status, body, Content_Type="application/xml", Connection="close")


def test_a_store_that_refuses_checksums_over_tls_is_told_with_the_setting_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, serving = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with Bucket(serving) as server:
        s3 = S3(endpoint_url=f"https://127.0.0.1:{server.port}", access_key_id="a", secret_access_key="b")
        found = inspect_own_store(Settings(object_store="s3://bucket", s3=s3))
        plain = s3.model_copy(update={"request_checksums": "when_required"})
        assert inspect_own_store(Settings(object_store="s3://bucket", s3=plain)).ok
    assert not found.ok
    assert 'request_checksums = "when_required"' in found.remedy
