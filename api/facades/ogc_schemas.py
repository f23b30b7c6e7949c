"""What goes over the wire at `/ogc`: the schemas of OGC API - Processes 1.0, with the standard's names."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from penstock.api.schemas import Outgoing

Uri = Annotated[str, StringConstraints(min_length=1, max_length=2048)]


class Link(Outgoing):
    """Where something else is."""

    href: str
    rel: str | None = None
    type: str | None = None
    title: str | None = None


class Landing(Outgoing):
    """Where to begin."""

    title: str
    description: str
    links: list[Link]


class Conformance(Outgoing):
    """The classes of the standard that this is true to."""

    conformsTo: list[str]  # noqa: N815  (the standard's name, as the others below)


class ProcessSummary(Outgoing):
    """A process: a model of the catalogue."""

    id: str
    version: str
    title: str
    description: str | None = None
    jobControlOptions: list[str]  # noqa: N815
    outputTransmission: list[str]  # noqa: N815
    links: list[Link]


class InputDescription(Outgoing):
    """An input. Its `schema` is OpenAPI 3.0's kind of JSON Schema."""

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
    """A process with what it takes and makes."""

    inputs: dict[str, InputDescription]
    outputs: dict[str, OutputDescription]


class ProcessList(Outgoing):
    """Some processes, by name. The link `next` leads to more."""

    processes: list[ProcessSummary]
    links: list[Link]


class StatusInfo(Outgoing):
    """How a job stands."""

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
    links: list[Link]


class StatusList(Outgoing):
    """Some jobs, newest first. The link `next` leads to more."""

    jobs: list[StatusInfo]
    links: list[Link]


class _Asking(BaseModel):
    """A part of an execute request. What the standard does not know is ignored, as its schemas say."""

    model_config = ConfigDict(frozen=True, strict=True)


class Format(_Asking):
    """In which of its formats an output is wanted."""

    mediaType: str | None = None  # noqa: N815


class OutputRequest(_Asking):
    """How an output is wanted."""

    transmissionMode: Literal["value", "reference"] = "value"  # noqa: N815
    format: Format | None = None


class Subscriber(_Asking):
    """Whom to tell: the results at `successUri`, else how the job stands."""

    successUri: Uri | None = None  # noqa: N815
    inProgressUri: Uri | None = None  # noqa: N815
    failedUri: Uri | None = None  # noqa: N815


class ExecuteRequest(_Asking):
    """A process to execute."""

    inputs: dict[str, Any] = Field(
        default_factory=dict,
        description="By value, as `{value, mediaType}`, or by `{href}`; see the process' description.",
    )
    outputs: dict[str, OutputRequest] = Field(
        default_factory=dict, description="Which outputs, and how; without it all of them, by value."
    )
    response: Literal["raw", "document"] = "raw"
    subscriber: Subscriber | None = None
