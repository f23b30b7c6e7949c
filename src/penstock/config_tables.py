"""The tables of the settings: drop rules, the limits of single tenants, the S3 service, access profiles."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal
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

from penstock.errors import ConfigError
from penstock.json_body import require_json

Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
DEFAULT_TENANT = "default"


def _store_address(url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path
    if not local and not (parts.scheme == "s3" and parts.netloc):
        raise ValueError(f"{url!r} is neither s3://bucket nor file:///folder")
    return url


_TARGET = r"^arn:aws[a-z-]*:(sns|sqs):[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?$"

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


class Secret(BaseModel):
    """A secret that the settings name and do not hold: it is read each time that it is used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Environment variable that holds the secret.
    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    #: File that holds the secret, without the white space at its ends.
    file: Path | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.env is None) == (self.file is None):
            raise ValueError('write { env = "VARIABLE" } or { file = "/path" }')
        return self

    def read(self) -> str:
        """Return the secret; raise `ConfigError`, which names its place, if it is missing or no line of ASCII."""
        if self.file is not None:
            place = f"the file {self.file}"
            try:
                text = self.file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{place} cannot be read ({type(error).__name__})") from None
        else:
            place = f"the environment variable {self.env}"
            text = os.environ.get(self.env or "", "").strip()
        if not text:
            raise ConfigError(f"{place} is {'not set' if self.file is None else 'empty'}")
        if not _ONE_LINE.fullmatch(text):
            raise ConfigError(f"{place} holds more than one line of ASCII")
        return text


_ONE_LINE: Final = re.compile(r"[\x20-\x7e]+")
AccessKind = Literal["bearer", "basic", "header", "query", "planetary-computer", "earthdata", "s3"]
#: Fields that a kind of access profile needs, and those that it may have besides them.
_NEEDS: Final[Mapping[AccessKind, tuple[frozenset[str], frozenset[str]]]] = {
    "bearer": (frozenset({"hosts", "secret"}), frozenset()),
    "basic": (frozenset({"hosts", "username", "secret"}), frozenset()),
    "header": (frozenset({"hosts", "header", "secret"}), frozenset()),
    "query": (frozenset({"hosts", "parameter", "secret"}), frozenset()),
    "planetary-computer": (frozenset({"hosts"}), frozenset({"secret", "service_url"})),
    "earthdata": (frozenset({"hosts", "secret"}), frozenset({"username", "service_url"})),
    "s3": (
        frozenset({"buckets"}),
        frozenset({"access_key_id", "secret", "service_url", "region", "requester_pays", "unsigned"}),
    ),
}
_SERVICES: Final[Mapping[AccessKind, str]] = {
    "planetary-computer": "https://planetarycomputer.microsoft.com/api/sas/v1/token",
    "earthdata": "https://urs.earthdata.nasa.gov",
}
#: A host, or `*.` and a domain of two names or more; a port.
_HOSTS: Final = r"^(\*\.[a-z0-9_-]+\.[a-z0-9_-]+|[a-z0-9_-]+|\[[0-9a-f:.]+\])(\.[a-z0-9_-]+)*(:[0-9]{1,5})?$"
_BUCKETS: Final = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9*]$"


class EventTarget(BaseModel):
    """An SNS topic or an SQS queue to which webhook endpoints may lead, with the service's own identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Its ARN, which is the `url` of endpoints: `arn:aws:sns:REGION:ACCOUNT:TOPIC`, `arn:aws:sqs:REGION:ACCOUNT:QUEUE`.
    arn: Annotated[str, Field(pattern=_TARGET)]
    #: Tenants whose endpoints may lead there; empty = all.
    tenants: tuple[Tenant, ...] = ()
    #: Address of a service with the API of SNS or SQS; None = that of AWS.
    endpoint_url: Annotated[str, Field(pattern=r"^https?://[^/\s]+")] | None = None

    @property
    def service(self) -> str:
        """`sns` or `sqs`."""
        return self.arn.split(":")[2]

    @property
    def region(self) -> str:
        """The region in the ARN."""
        return self.arn.split(":")[3]

    @property
    def account(self) -> str:
        """The number of the account in the ARN."""
        return self.arn.split(":")[4]

    @property
    def name(self) -> str:
        """The name of the topic or queue."""
        return self.arn.split(":")[5]

    @property
    def is_fifo(self) -> bool:
        """True for one that keeps the order of messages."""
        return self.arn.endswith(".fifo")


def find_target(targets: Iterable[EventTarget], arn: str, tenant: str) -> EventTarget | None:
    """Return the target with this ARN to which a tenant's endpoints may lead."""
    named = (each for each in targets if each.arn == arn)
    return next((each for each in named if not each.tenants or tenant in each.tenants), None)


class AccessProfile(BaseModel):
    """The way to read files of some hosts or buckets that want credentials."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Name of the profile, shown in errors.
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    #: Scheme of the credentials.
    kind: AccessKind
    #: Hosts of the files, except for `s3`: `data.example.org`, `*.example.org` or `data.example.org:8443`. Tenants of
    #: the profile may name files there; hosts that are not public must stand in `allowed_hosts`, too.
    hosts: tuple[Annotated[str, Field(pattern=_HOSTS)], ...] = ()
    #: Buckets of the files, for `s3`: `usgs-landsat` or `sentinel-*`. Tenants of the profile may name objects there.
    buckets: tuple[Annotated[str, Field(pattern=_BUCKETS)], ...] = ()
    #: Tenants whose jobs may use the profile; empty = all. A profile that names a tenant comes before one for all.
    tenants: tuple[Tenant, ...] = ()
    #: The token, password, value or secret key, as `{ env = "VARIABLE" }` or `{ file = "/path" }`. For
    #: `planetary-computer` a subscription key, which is optional; for `earthdata` a token, or the password of
    #: `username`.
    secret: Secret | None = None
    #: User of `basic` and `earthdata`.
    username: Annotated[str, Field(pattern=r"^[\x21-\x39\x3b-\x7e]{1,200}$")] | None = None
    #: Name of the header that `header` sends, such as `X-API-Key`.
    header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,100}$")] | None = None
    #: Name of the parameter that `query` adds to the address.
    parameter: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,100}$")] | None = None
    #: Address of the service behind the profile: of the tokens of `planetary-computer`, of the login of `earthdata`, of
    #: the endpoint of `s3`. None = that of Microsoft, of NASA, of AWS.
    service_url: str | None = None
    #: Access key of `s3`; None = boto3's own search.
    access_key_id: str | None = None
    #: Region in the signatures of `s3`.
    region: str = "us-east-1"
    #: True if the reader pays for the transfer from the buckets of `s3`.
    requester_pays: bool = False
    #: True for public buckets, which are read without a signature.
    unsigned: bool = False

    @field_validator("service_url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError(f"{url!r} is not http(s)://host:port")
        return url

    @model_validator(mode="after")
    def _fits_its_kind(self) -> AccessProfile:
        needed, possible = _NEEDS[self.kind]
        fields = type(self).model_fields.items()
        given = {name for name, field in fields if getattr(self, name) != field.default}
        if missing := sorted(needed - given):
            raise ValueError(f"a profile of kind {self.kind!r} needs {' and '.join(missing)}")
        if foreign := sorted(given - needed - possible - {"name", "kind", "tenants"}):
            raise ValueError(f"a profile of kind {self.kind!r} has no {' or '.join(foreign)}")
        if self.kind == "s3" and (self.access_key_id is None) != (self.secret is None):
            raise ValueError("access_key_id and secret belong together")
        if self.unsigned and (self.secret is not None or self.requester_pays):
            raise ValueError("unsigned requests have neither keys nor a reader who pays")
        return self

    @property
    def service(self) -> str:
        """The address of the service behind the profile, with the default applied; empty if the kind has none."""
        return (self.service_url or _SERVICES.get(self.kind, "")).rstrip("/")


def _checked_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """Return origins of web pages; `ValueError` for another text, and for others beside `*`."""
    for origin in origins:
        parts = urlsplit(origin)
        is_origin = parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}".lower()
        if origin != "*" and not (is_origin and parts.hostname and "@" not in parts.netloc):
            raise ValueError(f"{origin!r} is not an origin: write https://HOST or https://HOST:PORT, without a path")
    if "*" in origins and len(origins) > 1:
        raise ValueError("'*' stands for every origin: name no others beside it")
    return origins


#: Origins of web pages, or `*` alone.
Origins = Annotated[tuple[str, ...], AfterValidator(_checked_origins)]
