"""Mistakes of the client's callers raise at once, before any request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.client import Client, ClientError
from penstock.client.local_files import with_media
from penstock.client.operations import Operations
from penstock.client.protocol import JobOptions, Request

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(NOWHERE, patience_s=0) as made:
        yield made


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda client, **options: client.submit("m", **options), "did you mean 'idempotency_key'"),
        (lambda client, **options: client.submit_batch([{"input": {}}], **options), "did you mean 'idempotency_key'"),
        (lambda client, **options: client.create_webhook_endpoint("https://a.test", **options), "unexpected option"),
    ],
)
def test_an_option_that_there_is_not(client: Client, ask: Callable[..., Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        ask(client, idempotencykey="same")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_an_id_that_is_none(client: Client, name: str) -> None:
    for ask in (client.job, client.cancel, client.delete, client.queue, client.batch):
        with pytest.raises(ClientError, match="is not an id"):
            ask(name)


@pytest.mark.parametrize("key", ["", "frühling", "a\nb", "x" * 256, " a"])
def test_a_key_that_no_header_carries(client: Client, key: str) -> None:
    with pytest.raises(ClientError, match="1 to 255 characters"):
        client.submit("m", idempotency_key=key)


def test_the_options_of_the_caller_stay_as_they_are() -> None:
    options: JobOptions = {"idempotency_key": "order-1"}
    first = next(Operations(0).submit("m", {}, {}, None, options))
    assert isinstance(first, Request)
    assert first.headers["Idempotency-Key"] == "order-1"
    assert options == {"idempotency_key": "order-1"}


def test_a_field_that_is_given_twice() -> None:
    with pytest.raises(ClientError, match="twice"):
        with_media({"scene": "media://a/b"}, "scene", "media://c/d")
    assert with_media({"a": {"c": 1}}, "a.b", "media://c/d") == {"a": {"c": 1, "b": "media://c/d"}}
