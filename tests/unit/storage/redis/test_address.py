"""Addresses of Redis: those of Sentinels are taken apart, all others are redis-py's."""

from __future__ import annotations

import pytest

from penstock.storage.hints import celery_settings
from penstock.storage.redis.address import connect, connect_async, parse_sentinels, without_credentials


def test_the_address_of_a_server_is_no_address_of_sentinels() -> None:
    for url in ("redis://host:6379/0", "rediss://user:word@host/1", "unix:///run/valkey.sock"):
        assert parse_sentinels(url) is None
        assert celery_settings(url, visibility_timeout_s=1)["broker_url"] == url


def test_an_address_of_sentinels_names_hosts_service_database_and_log_ins() -> None:
    url = "redis+sentinel://us%40er:wo%2Frd@a,b:7,[::1]:8/mine/3?sentinel_password=other&health_check_interval=5"
    found = parse_sentinels(url)
    assert found is not None
    assert found.hosts == (("a", 26379), ("b", 7), ("::1", 8))
    assert found.service == "mine"
    assert found.options == {"username": "us@er", "password": "wo/rd", "db": 3, "health_check_interval": 5}
    assert found.sentinel_options["password"] == "other"
    assert found.celery_url == (
        "sentinel://us%40er:wo%2Frd@a:26379/3;sentinel://us%40er:wo%2Frd@b:7/3;sentinel://us%40er:wo%2Frd@[::1]:8/3"
    )
    settings = celery_settings(url, visibility_timeout_s=1)
    assert settings["broker_url"] == found.celery_url
    assert settings["broker_transport_options"]["master_name"] == "mine"
    assert settings["broker_transport_options"]["sentinel_kwargs"]["password"] == "other"


def test_both_clients_log_in_at_the_primary_as_the_address_says() -> None:
    for client in (
        connect("redis+sentinel://:word@a/mine", decode_responses=True),
        connect_async("redis+sentinel://:word@a/mine"),
    ):
        assert client.connection_pool.service_name == "mine"
        assert client.connection_pool.connection_kwargs["password"] == "word"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://host", "name the service"),
        ("redis+sentinel://host/", "name the service"),
        ("redis+sentinel:///mine", "an address of a Sentinel is empty"),
        ("redis+sentinel://a,,b/mine", "an address of a Sentinel is empty"),
        ("redis+sentinel://a:port/mine", "port"),
        ("rediss+sentinel://a/mine", "TLS"),
    ],
)
def test_an_address_that_lacks_something_says_what(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        connect(url)


@pytest.mark.parametrize(
    ("url", "left"),
    [
        ("redis://user:word@host:6379/0", "redis://host:6379/0"),
        (
            "rediss://host/0?password=word&username=user&health_check_interval=5",
            "rediss://host/0?health_check_interval=5",
        ),
        ("redis://host", "redis://host"),
        ("redis+sentinel://:word@a,b:7/mine?sentinel_password=x", "redis+sentinel://a,b:7/mine?sentinel_password=x"),
        ("unix://:word@/run/valkey.sock", None),
    ],
)
def test_credentials_are_left_out(url: str, left: str | None) -> None:
    assert without_credentials(url) == left
