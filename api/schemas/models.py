"""Schemas of models: their catalogue entries, and for operators the loads that ended their process."""

from __future__ import annotations

from pydantic import Field

from penstock.api.schemas.jobs import Outgoing, Time
from penstock.models import CatalogueEntry


class LoadFailureView(Outgoing):
    """The latest load of a model on a machine, which ended its process."""

    machine: str
    reason: str = Field(validation_alias="how", description="The end of the load, such as `was ended by SIGABRT`.")
    #: The last lines that the load wrote.
    lines: list[str]
    #: Failed loads in a row.
    failures: int = Field(validation_alias="count")
    #: Time of the failure.
    at: Time = Field(validation_alias="at_s")
    next_try_seconds: float = Field(
        validation_alias="wait_s", description="Seconds until the machine may try again; 0 if the next job tries."
    )


class ModelView(CatalogueEntry):
    """A model."""

    load_failures: tuple[LoadFailureView, ...] = Field(
        default=(),
        description="The machines on which the model's load ended its process, for keys with the scope `admin`. Other "
        "keys see the reason in `problem` or `note`.",
    )


class ModelList(Outgoing):
    """The models, sorted by name."""

    models: list[ModelView]
