# Generated from the module in asynchronous by `make client`.
"""Subscriptions: each new item of a STAC catalogue becomes a job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from penstock.client.options import SubscriptionOptions, body_of, check_options, segment
from penstock.client.subscription_answers import Subscription
from penstock.client.synchronous.service import SyncPart

_SUBSCRIPTIONS = "/v1/subscriptions"


class SyncSubscriptions(SyncPart):
    """The methods for subscriptions."""

    def subscriptions(self) -> list[Subscription]:
        """Return the subscriptions by name, each with its latest ten notes."""
        return self._service.values(Subscription, "subscriptions", _SUBSCRIPTIONS)

    def subscription(self, name: str) -> Subscription:
        """Return a subscription with its progress."""
        return self._service.value(Subscription, "GET", _place(name))

    def create_subscription(
        self, name: str, *, stac: str, collections: Sequence[str], model: str, **options: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """Create a subscription: each item of these collections of a STAC API becomes a job of the model.

        The same call again returns the same subscription; another one for its name is an error.
        """
        check_options(options, SubscriptionOptions)
        wanted = {"name": name, "stac": stac, "collections": list(collections), "model": model}
        return self._service.value(Subscription, "POST", _SUBSCRIPTIONS, body=body_of({**wanted, **options}))

    def pause_subscription(self, name: str) -> Subscription:
        """Pause a subscription; its jobs go on."""
        return self._service.value(Subscription, "POST", f"{_place(name)}/pause")

    def resume_subscription(self, name: str) -> Subscription:
        """Resume a subscription; items that came meanwhile become jobs."""
        return self._service.value(Subscription, "POST", f"{_place(name)}/resume")

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription with its collection of results; its jobs stay."""
        self._service.send("DELETE", _place(name))


def _place(name: str) -> str:
    return f"{_SUBSCRIPTIONS}/{segment(name)}"
