# Generated from the module in asynchronous by `make client`.
"""The client of one service. Import it from `penstock.client`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from penstock.client import connection
from penstock.client.connection import DEFAULT_URL, PATIENCE_S
from penstock.client.options import OnRetry
from penstock.client.synchronous.batches import SyncBatches
from penstock.client.synchronous.jobs import SyncJobs
from penstock.client.synchronous.queues import SyncQueues
from penstock.client.synchronous.service import SyncService
from penstock.client.synchronous.subscriptions import SyncSubscriptions
from penstock.client.synchronous.webhooks import SyncWebhooks


class Client(SyncJobs, SyncBatches, SyncQueues, SyncSubscriptions, SyncWebhooks):
    """A client of one service. Close it after use, or use it as a context manager."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
        state_dir: str | Path | None = None,
        on_retry: OnRetry | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        http = httpx2.Client(**connection.options(base_url), transport=transport)
        service = SyncService(
            address=base_url,
            http=http,
            patience_s=patience_s,
            api_key=connection.checked_key(api_key),
            state_dir=None if state_dir is None else Path(state_dir),
            on_retry=on_retry,
        )
        super().__init__(service)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._service.http.close()
