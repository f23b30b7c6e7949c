"""Schemas of the answer to a dry run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.api.schemas.jobs import Outgoing


class IntervalView(Outgoing):
    """An interval to expect. Its upper end is at most four times the lower one."""

    low: float
    high: float


class PriceView(IntervalView):
    """The interval of the price."""

    #: The unit, from the service's settings.
    currency: str


class EstimateView(Outgoing):
    """The answer to a dry run: the same request would be accepted now. No job was created."""

    #: The type of this document.
    object: Literal["estimate"] = "estimate"
    #: The model's name, even where the request used an alias.
    model: str
    #: The queue of the job.
    queue: str
    #: Bytes of the media that the request names; null without media, and where the size of one is not known.
    media_bytes: int | None
    device_seconds: IntervalView | None = Field(
        description="Seconds of a device that the job is expected to use, from the latest jobs of the model and the "
        "bytes of their media. Null before a job of the model has succeeded on a device whose time is measured."
    )
    wait_seconds: float | None = Field(description="Expected seconds until the job begins. Null without an estimate.")
    price: PriceView | None = Field(description="The price of these device seconds, where the operator set one.")
    model_problem: str | None = Field(description="The reason why no worker can run the job now.")
