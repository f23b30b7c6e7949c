"""The client of one service. Import it from `penstock.client`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2

from penstock.client import connection
from penstock.client.asynchronous.batches import AsyncBatches
from penstock.client.asynchronous.jobs import AsyncJobs
from penstock.client.asynchronous.queues import AsyncQueues
from penstock.client.asynchronous.service import AsyncService
from penstock.client.asynchronous.subscriptions import AsyncSubscriptions
from penstock.client.asynchronous.webhooks import AsyncWebhooks
from penstock.client.connection import DEFAULT_URL, PATIENCE_S
from penstock.client.options import OnRetry


class AsyncClient(AsyncJobs, AsyncBatches, AsyncQueues, AsyncSubscriptions, AsyncWebhooks):
    """A client of one service. Close it after use, or use it as a context manager."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
        state_dir: str | Path | None = None,
        on_retry: OnRetry | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        http = httpx2.AsyncClient(**connection.options(base_url), transport=transport)
        service = AsyncService(
            address=base_url,
            http=http,
            patience_s=patience_s,
            api_key=connection.checked_key(api_key),
            state_dir=None if state_dir is None else Path(state_dir),
            on_retry=on_retry,
        )
        super().__init__(service)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._service.http.aclose()
