"""The checked-in sync client is the one that `make client` writes."""

from __future__ import annotations

from infra.sync_client import TARGET, generated


def test_the_sync_client_is_generated_from_the_async_one() -> None:
    assert TARGET.read_text() == generated(), "run `make client`"
