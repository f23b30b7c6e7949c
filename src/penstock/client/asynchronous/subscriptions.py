"""Subscriptions: each new item of a STAC catalogue becomes a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from penstock.client.asynchronous.service import AsyncPart
from penstock.client.options import SubscriptionOptions, body_of, check_options, segment
from penstock.client.subscription_answers import Subscription

_SUBSCRIPTIONS = "/v1/subscriptions"


class AsyncSubscriptions(AsyncPart):
    """The methods for subscriptions."""

    async def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions by name, each with its latest ten notes."""
        return await self._service.values(Subscription, "subscriptions", _SUBSCRIPTIONS)

    async def subscription(self, name: str) -> Subscription:
        """Return a subscription with its progress."""
        return await self._service.value(Subscription, "GET", _place(name))

    async def create_subscription(
        self, name: str, *, stac: str, collections: Sequence[str], model: str, **options: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """Create a subscription: each item of these collections of a STAC API becomes a job of the model.

        The same call again returns the same subscription; another one for its name is an error.
        """
        check_options(options, SubscriptionOptions)
        wanted = {"name": name, "stac": stac, "collections": list(collections), "model": model}
        return await self._service.value(Subscription, "POST", _SUBSCRIPTIONS, body=body_of({**wanted, **options}))

    async def pause_subscription(self, name: str) -> Subscription:
        """Pause a subscription; its jobs go on."""
        return await self._service.value(Subscription, "POST", f"{_place(name)}/pause")

    async def resume_subscription(self, name: str) -> Subscription:
        """Resume a subscription; items that came meanwhile become jobs."""
        return await self._service.value(Subscription, "POST", f"{_place(name)}/resume")

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription with its collection of results; its jobs stay."""
        await self._service.send("DELETE", _place(name))


def _place(name: str) -> str:
    return f"{_SUBSCRIPTIONS}/{segment(name)}"
