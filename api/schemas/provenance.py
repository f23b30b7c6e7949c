"""Schemas of a result's provenance."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Kept(BaseModel):
    """Base class of a part of the provenance, as the job's worker stored it, maybe of a newer release."""

    model_config = ConfigDict(frozen=True, extra="allow")


class MadeByModelView(Kept):
    """The model that made a result."""

    #: The model's name.
    name: str
    #: The revision in the model's record.
    revision: str
    record_sha256: str = Field(
        description="Digest of the fields of the model's record that can change a result; titles, queues and times "
        "are not among them."
    )
    weights_sha256: str | None = Field(
        default=None,
        description="SHA-256 of the weights' file; for a folder the digest of its files' names and hashes. Null for "
        "large weights whose record has no hashes, and for a model that a server computes.",
    )
    #: The runner.
    runner: str
    #: The number type of the computation.
    dtype: str
    #: The IO processor.
    processor: str
    #: The version of the package that brings the processor.
    processor_version: str | None = None
    packages: str | None = Field(
        default=None,
        description="Digest of the lock from which the model's environment was built, or of the names and versions of "
        "the packages in an environment that was ready. Null for a model in the worker's environment.",
    )


class InputView(Kept):
    """A file that a result was made of."""

    place: str | None = Field(
        default=None, description="JSON pointer into `input`; null for a file that a document of the job names."
    )
    #: The reference; for an address on the web without its query.
    reference: str
    #: The size of the whole file in bytes.
    size_bytes: int
    sha256: str | None = Field(
        default=None, description="Digest of the whole file; null for a scene of which only ranges were read."
    )
    etag: str | None = Field(
        default=None, description="Strong etag of the source; only for a file without `sha256`, where it has one."
    )


class OtherInputsView(Kept):
    """The inputs after the first 100."""

    #: Their number.
    number: int
    #: Their bytes together.
    size_bytes: int
    #: One digest of their references, sizes and digests.
    sha256: str


class ProvenanceView(Kept):
    """The model, software, machine and inputs that made a result."""

    environment: str | None = Field(
        default=None,
        description="Digest of `model`, `machine` and `software`: two results with the same one were computed alike. "
        "Null, as are the three, where the result cache returned the result of a job without provenance, and for a "
        "job kept in Redis alone that ended while the object store was away.",
    )
    #: The model; null where its description is no longer stored.
    model: MadeByModelView | None = None
    machine: str | None = Field(
        default=None,
        description="The kind of machine, such as `cpu-avx2` or `cuda-nvidia-h100`; `server` for a model that a "
        "server computes. Results of two kinds may differ in their last bits.",
    )
    #: Versions of Penstock, of Python and of the libraries that the worker had loaded, by name.
    software: dict[str, str] = Field(default_factory=dict)
    #: The files, at most 100.
    inputs: list[InputView] = Field(default_factory=list)
    #: The inputs after the first 100; null without such.
    other_inputs: OtherInputsView | None = None
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        description="The fields that `input` left out, by JSON pointer, with the values that counted: at most 200.",
    )
    #: The number of parts that several workers computed; 0 for a job that one worker computed.
    parts: int = 0
    resumed: int = Field(
        default=0, description="Units of the work that earlier attempts or the parts had saved before the last attempt."
    )
    copied_from: str | None = Field(
        default=None,
        description="Id of the earlier, equal job that computed the result, where the result cache returned it.",
    )
