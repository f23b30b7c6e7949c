"""The tables of the settings: drop rules, the limits of single tenants, and the S3 service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from penstock.json_body import require_json

Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
DEFAULT_TENANT = "default"


def _store_address(url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path
    if not local and not (parts.scheme == "s3" and parts.netloc):
        raise ValueError(f"{url!r} is neither s3://bucket nor file:///folder")
    return url


StoreAddress = Annotated[str, AfterValidator(_store_address)]
#: The value of `events` for rules whose store sends its events to the API.
WEBHOOK = "webhook"


def _job_input(value: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
    require_json(value, of=f"drop rule {info.data.get('name')!r}")
    return value


class DropRule(BaseModel):
    """Every object version under `bucket`/`prefix` becomes one job."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Name of the rule, shown as the jobs' `metadata.drop`.
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    #: Address of the bucket or folder: `s3://bucket` or `file:///folder`.
    bucket: StoreAddress
    #: Start of the objects' keys; empty for the whole bucket.
    prefix: str = ""
    #: Endings of the objects' keys, upper or lower case. None = those of the files that the model takes. With `.json`,
    #: and without `field`, JSON files hold the input of a job or a STAC item.
    suffixes: tuple[str, ...] | None = None
    #: Model of the jobs, by its name or an alias.
    model: str
    #: The jobs' `input` without its media reference; `scene.tif.json` beside the object overrides it key by key.
    #: Only JSON values are allowed: no `nan`, no `inf`, no dates.
    input: Annotated[Mapping[str, Any], AfterValidator(_job_input)] = Field(default_factory=dict)
    #: Field of the model's input that holds the reference to the object. None = the field of the model's only file.
    field: str | None = None
    #: Prefix of results and markers, in the same bucket. It must not lie under `prefix`, nor `prefix` under it.
    output_prefix: str
    #: Tenant of the jobs.
    tenant: Tenant = DEFAULT_TENANT
    #: Source of events about new objects. None = no events: the bucket is listed every `drop_poll_s`. `webhook` = the
    #: store sends them to `POST /v1/events/s3`. Otherwise the address of an SQS queue. With events, a listing every
    #: `drop_list_s` finds the objects whose events were lost.
    events: str | None = None

    @field_validator("prefix", "output_prefix")
    @classmethod
    def _leads_down(cls, prefix: str) -> str:
        if prefix.startswith("/") or ".." in prefix.split("/"):
            raise ValueError(f"{prefix!r} leads out of the bucket: remove the leading '/' and any '..'")
        return prefix

    @model_validator(mode="after")
    def _own_outputs_never_trigger(self) -> DropRule:
        if self.output_prefix.startswith(self.prefix):
            raise ValueError(f"output_prefix {self.output_prefix!r} lies under prefix {self.prefix!r}")
        if self.prefix.startswith(self.output_prefix):
            raise ValueError(f"prefix {self.prefix!r} lies under output_prefix {self.output_prefix!r}")
        return self

    @model_validator(mode="after")
    def _events_come_from_somewhere(self) -> DropRule:
        if self.events is None:
            return self
        if self.bucket.startswith("file:"):
            raise ValueError("a folder sends no events: remove `events`")
        parts = urlsplit(self.events)
        if self.events != WEBHOOK and not (parts.scheme in ("http", "https") and parts.hostname and parts.path):
            raise ValueError(f"events {self.events!r} is neither 'webhook' nor the address of an SQS queue")
        return self

    @property
    def takes_documents(self) -> bool:
        """True where JSON files hold the input of a job or a STAC item."""
        return self.field is None and any(suffix.lower().endswith(".json") for suffix in self.suffixes or ())

    @property
    def queue_url(self) -> str | None:
        """The address of the SQS queue with the rule's events, if there is one."""
        return None if self.events in (None, WEBHOOK) else self.events


class TenantLimits(BaseModel):
    """The limits of one tenant; a field left out has the value of the setting in brackets."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Jobs waiting or running at once [max_tenant_jobs].
    max_jobs: int | None = Field(default=None, gt=0)
    #: Jobs running at once [max_tenant_running].
    max_running: int | None = Field(default=None, gt=0)
    #: Submissions per second to all API processes together [max_tenant_submissions_per_s].
    max_submissions_per_s: float | None = Field(default=None, ge=0.001, allow_inf_nan=False)
    #: Bytes of a request [max_body_bytes].
    max_body_bytes: int | None = Field(default=None, gt=0)
    #: Bytes of a file [max_upload_bytes].
    max_upload_bytes: int | None = Field(default=None, gt=0)
    #: Seconds of devices a day [max_tenant_device_s_per_day].
    max_device_s_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Bytes of objects kept [max_tenant_kept_bytes].
    max_kept_bytes: int | None = Field(default=None, gt=0)
    #: Permission to send raw tensors and embeddings [raw_tensors].
    raw_tensors: bool | None = None


class S3(BaseModel):
    """The S3-compatible service behind every `s3://` address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Address of the service; None = AWS.
    endpoint_url: str | None = None
    #: Region in the requests' signatures.
    region: str = "us-east-1"
    #: Access key; None = boto3's own search (environment, profile, instance role).
    access_key_id: str | None = None
    #: Secret of `access_key_id`.
    secret_access_key: SecretStr | None = None
    #: Form of addresses. `path` works with every server; AWS prefers `virtual`.
    addressing_style: Literal["path", "virtual", "auto"] = "path"
    #: Checksums of uploads. `when_required` leaves out those that the protocol does not demand, for a server that
    #: refuses checksum trailers over TLS.
    request_checksums: Literal["when_supported", "when_required"] = "when_supported"

    @field_validator("endpoint_url")
    @classmethod
    def _with_scheme(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError(f"{url!r} is not http(s)://host:port")
        return url
