"""Schemas of OGC API - Processes 1.0, with the standard's names."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.api.schemas.jobs import Outgoing

Uri = Annotated[str, StringConstraints(min_length=1, max_length=2048)]


class OgcLink(Outgoing):
    """A link to another resource."""

    href: str
    rel: str | None = None
    type: str | None = None
    title: str | None = None


class Landing(Outgoing):
    """The landing page."""

    title: str
    description: str
    links: list[OgcLink]


class Conformance(Outgoing):
    """The conformance classes of the standard."""

    conformsTo: list[str]  # noqa: N815  (the standard's name, as the others below)


class ProcessSummary(Outgoing):
    """A process: a model of the catalogue."""

    id: str
    version: str
    title: str
    description: str | None = None
    jobControlOptions: list[str]  # noqa: N815
    outputTransmission: list[str]  # noqa: N815
    links: list[OgcLink]


class InputDescription(Outgoing):
    """An input. Its `schema` is an OpenAPI 3.0 schema."""

    title: str
    description: str | None = None
    minOccurs: int  # noqa: N815
    maxOccurs: int | Literal["unbounded"]  # noqa: N815
    schema_: dict[str, Any] = Field(serialization_alias="schema", validation_alias="schema")


class OutputDescription(Outgoing):
    """An output."""

    title: str
    description: str | None = None
    schema_: dict[str, Any] = Field(serialization_alias="schema", validation_alias="schema")


class ProcessDescription(ProcessSummary):
    """A process with its inputs and outputs."""

    inputs: dict[str, InputDescription]
    outputs: dict[str, OutputDescription]


class ProcessList(Outgoing):
    """A page of processes, sorted by name. The link `next` leads to the next page."""

    processes: list[ProcessSummary]
    links: list[OgcLink]


class StatusInfo(Outgoing):
    """The status of a job."""

    jobID: str  # noqa: N815
    processID: str  # noqa: N815
    type: Literal["process"]
    status: Literal["accepted", "running", "successful", "failed", "dismissed"]
    message: str | None = None
    created: datetime
    started: datetime | None = None
    finished: datetime | None = None
    updated: datetime
    progress: Annotated[int, Field(ge=0, le=100)] | None = None
    links: list[OgcLink]


class StatusList(Outgoing):
    """A page of jobs, newest first. The link `next` leads to the next page."""

    jobs: list[StatusInfo]
    links: list[OgcLink]


class _Asking(BaseModel):
    """Base class of parts of an execute request. Unknown fields are ignored, as in the standard's schemas."""

    model_config = ConfigDict(frozen=True, strict=True)


class Format(_Asking):
    """The requested format of an output."""

    mediaType: str | None = None  # noqa: N815


class OutputRequest(_Asking):
    """The requested form of an output."""

    transmissionMode: Literal["value", "reference"] = "value"  # noqa: N815
    format: Format | None = None


class Subscriber(_Asking):
    """Callback URLs: `successUri` receives the results, the others the status of the job."""

    successUri: Uri | None = None  # noqa: N815
    inProgressUri: Uri | None = None  # noqa: N815
    failedUri: Uri | None = None  # noqa: N815


class ExecuteRequest(_Asking):
    """An execute request."""

    inputs: dict[str, Any] = Field(
        default_factory=dict,
        description="Inputs by value, as `{value, mediaType}`, or by `{href}`; see the description of the process.",
    )
    outputs: dict[str, OutputRequest] = Field(
        default_factory=dict, description="Requested outputs and their forms; by default all outputs by value."
    )
    response: Literal["raw", "document"] = "raw"
    subscriber: Subscriber | None = None
