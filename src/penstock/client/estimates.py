"""The answer to a dry run of a submission."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.client.answers import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate(Answer):
    """The service would accept the job, which is expected to take so long."""

    model: str
    queue: str
    #: Bytes of the media; None without media, and where the size of one is not known.
    media_bytes: int | None = None
    #: `low` and `high` seconds of a device; None before a job of the model has succeeded.
    device_seconds: Mapping[str, float] | None = None
    #: Expected seconds until the job begins; None if unknown.
    wait_seconds: float | None = None
    #: `low`, `high` and `currency` of the price of these device seconds; None where the operator set none.
    price: Mapping[str, Any] | None = None
    #: The reason why no worker can run the job now.
    model_problem: str | None = None
