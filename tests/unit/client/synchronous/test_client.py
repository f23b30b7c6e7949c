"""The sync client: the checked-in modules are those of `make client`, and mistakes of its callers raise at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from infra.sync_client import TARGET, generated
from penstock.client import Client, ClientError

NOWHERE = "http://127.0.0.1:9"


def test_the_sync_client_is_generated_from_the_async_one() -> None:
    assert {path.name: path.read_text() for path in TARGET.glob("*.py")} == generated(), "run `make client`"


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
    others = (client.queue, client.batch, client.webhook_endpoint, client.worker_lines)
    for ask in (client.job, client.cancel, client.delete, *others):
        with pytest.raises(ClientError, match="is not an id"):
            ask(name)


@pytest.mark.parametrize("key", ["", "frühling", "a\nb", "x" * 256, " a"])
def test_a_key_that_no_header_carries(client: Client, key: str) -> None:
    with pytest.raises(ClientError, match="1 to 255 characters"):
        client.submit("m", idempotency_key=key)
