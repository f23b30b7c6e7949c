"""The settings: read once from `penstock.toml` and the environment, frozen, checked together, then passed on.

Nothing else reads the environment. Sources, strongest first: arguments, `PENSTOCK_*` variables (nested with `__`),
`penstock.toml` in the working directory or the file that `PENSTOCK_CONFIG` names.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from penstock.documents import require_json, toml_complaint, wrong_fields
from penstock.errors import ConfigError
from penstock.parts import MIN_PART_BYTES

Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
DEFAULT_TENANT = "default"


def _store_address(url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path
    if not local and not (parts.scheme == "s3" and parts.netloc):
        raise ValueError(f"{url!r} is neither s3://bucket nor file:///folder")
    return url


StoreAddress = Annotated[str, AfterValidator(_store_address)]
#: Of a drop rule whose store sends its events to the API.
WEBHOOK = "webhook"


def _job_input(value: Mapping[str, Any], info: ValidationInfo) -> Mapping[str, Any]:
    require_json(value, of=f"drop rule {info.data.get('name')!r}")
    return value


class DropRule(BaseModel):
    """An object that lands under `bucket`/`prefix` becomes one job per object version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The jobs' `metadata.drop`.
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    #: `s3://bucket` or `file:///folder`.
    bucket: StoreAddress
    #: What the keys of objects begin with; empty for the whole bucket.
    prefix: str = ""
    #: What they end with, upper or lower case.
    suffixes: tuple[str, ...] = (".tif", ".tiff")
    #: The model of the jobs, by its name or an alias.
    model: str
    #: The job's `input` without its media reference; `scene.tif.json` beside the object overrides it key by key.
    #: It holds what JSON can: no `nan`, no `inf`, no dates.
    input: Annotated[Mapping[str, Any], AfterValidator(_job_input)] = Field(default_factory=dict)
    #: The field of the model's input that takes the object.
    field: str = "scene"
    #: Where results and markers go, in the same bucket. It may not lie under `prefix` unless it says otherwise.
    output_prefix: str
    #: Whose jobs they are.
    tenant: Tenant = DEFAULT_TENANT
    #: What tells of new objects: None = nothing, the bucket is listed every `drop_poll_s`; `webhook` = the store, at
    #: `POST /v1/events/s3`; or the address of an SQS queue. With events the listing, which finds what they missed,
    #: comes every `drop_list_s`.
    events: str | None = None

    @field_validator("prefix", "output_prefix")
    @classmethod
    def _leads_down(cls, prefix: str) -> str:
        if prefix.startswith("/") or ".." in prefix.split("/"):
            raise ValueError(f"{prefix!r} leads out of the bucket: no '/' in front, no '..'")
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
            raise ValueError("a folder sends no events: leave `events` out")
        parts = urlsplit(self.events)
        if self.events != WEBHOOK and not (parts.scheme in ("http", "https") and parts.hostname and parts.path):
            raise ValueError(f"events {self.events!r} is neither 'webhook' nor the address of an SQS queue")
        return self

    @property
    def queue_url(self) -> str | None:
        """The SQS queue that tells of the rule's objects, if one does."""
        return None if self.events in (None, WEBHOOK) else self.events


class TenantLimits(BaseModel):
    """What one tenant may not exceed; what is left out is the setting for all (in brackets)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Waiting or running [max_tenant_jobs].
    max_jobs: int | None = Field(default=None, gt=0)
    #: At a time [max_tenant_running].
    max_running: int | None = Field(default=None, gt=0)
    #: To each API process [max_tenant_submissions_per_s].
    max_submissions_per_s: float | None = Field(default=None, ge=0.001, allow_inf_nan=False)
    #: Of a request [max_body_bytes].
    max_body_bytes: int | None = Field(default=None, gt=0)
    #: Of a file [max_upload_bytes].
    max_upload_bytes: int | None = Field(default=None, gt=0)
    #: Whether it may send raw tensors and embeddings [raw_tensors].
    raw_tensors: bool | None = None


class S3(BaseModel):
    """The S3-compatible service behind every `s3://` address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: None = AWS.
    endpoint_url: str | None = None
    #: What requests are signed for.
    region: str = "us-east-1"
    #: None = boto3's own search (environment, profile, instance role).
    access_key_id: str | None = None
    #: Belongs to `access_key_id`.
    secret_access_key: SecretStr | None = None
    #: Path style works with every server; AWS wants `virtual`.
    addressing_style: Literal["path", "virtual", "auto"] = "path"

    @field_validator("endpoint_url")
    @classmethod
    def _with_scheme(cls, url: str | None) -> str | None:
        if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
            raise ValueError(f"{url!r} is not http(s)://host:port")
        return url


class Settings(BaseSettings):
    """Every setting of Penstock. Units are in the names."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", env_nested_delimiter="__", frozen=True, extra="forbid", toml_file="penstock.toml"
    )

    #: Where `penstock up` keeps Valkey's files, the local object store and its secret.
    data: Path = Path("penstock-data")
    #: None = `penstock up` starts a bundled Valkey under `data`.
    redis_url: str | None = None
    #: None = a local store under `data`; otherwise `s3://bucket` or `file:///folder`.
    object_store: StoreAddress | None = None
    #: The service behind `s3://` addresses.
    s3: S3 = S3()
    #: `manifest`: accepted jobs and their ends lie in the object store too and outlive the loss of Redis, which costs a
    #: put before the 202 and one at the end; `redis`: they are as safe as Redis is.
    durability: Literal["manifest", "redis"] = "manifest"
    #: Buckets that jobs may name as `s3://bucket/key`, beside those of the drop rules.
    s3_input_buckets: tuple[str, ...] = ()
    #: More catalogues, read after the shipped one.
    models: tuple[Path, ...] = ()
    #: Where models from the hub and from S3 are kept; None = `~/.cache/penstock/models`.
    model_cache: Path | None = None

    #: Where the API listens.
    host: str = "127.0.0.1"
    #: 0 = a free one.
    port: int = Field(default=8080, ge=0, le=65535)
    #: How clients reach the API, for links; None = `http://host:port`.
    public_url: str | None = None
    #: Who may ask. `keys`: whoever sends an API key, which names the tenant; `open`: everybody is the tenant `default`,
    #: on a loopback address only. None = `open` where `host` and `public_url` are loopback, `keys` anywhere else.
    access: Literal["open", "keys"] | None = None
    #: Signs the local store's links and the API keys: who loses it makes all keys anew. `penstock up` makes one under
    #: `data`; several APIs need the same.
    secret: SecretStr | None = None

    #: `host:port` pairs that jobs and webhooks may name although they are not public (exactly these pairs); a pair on
    #: this list is also the only kind of URL that may be fetched at all unless `fetch_any_public_host` is set.
    allowed_hosts: tuple[str, ...] = ()
    #: Whether jobs may name media on every public host, not on `allowed_hosts` alone.
    fetch_any_public_host: bool = False
    #: The same for webhooks, whose receivers are usually public.
    webhook_any_public_host: bool = True
    #: How long the secrets before sign webhooks beside the new one, where a rotation does not say it.
    webhook_secret_overlap_s: int = Field(default=86_400, ge=0, le=7 * 86_400)
    #: Of a request, and of a line of a batch; a larger one is answered 413.
    max_body_bytes: int = Field(default=1_000_000, gt=0)
    #: A request whose body brings nothing for so long is answered 408 and its connection closed.
    body_idle_s: float = Field(default=30, gt=0)
    #: Of a file that is sent, and of an object that jobs name.
    max_upload_bytes: int = Field(default=20_000_000_000, gt=0)
    #: How long the link of an upload is valid.
    upload_expires_s: int = Field(default=3600, gt=0)
    #: Of the parts in which large files are sent, each but the last.
    upload_part_bytes: int = Field(default=16 * 2**20, ge=MIN_PART_BYTES, le=2**30)
    #: How long the signed link behind an artifact is valid.
    link_expires_s: int = Field(default=3600, gt=0)
    #: How long /pooling and /openai hold a request open for its job.
    facade_wait_s: float = Field(default=600, gt=0)

    #: How long a worker holds a job without a sign of life.
    lease_s: float = Field(default=30, ge=1)
    #: How many workers a job may lose without progress before it fails with `worker_lost`.
    max_crashes: int = Field(default=3, gt=0)
    #: A queue with this many waiting jobs answers 503.
    max_queued: int = Field(default=1_000_000, gt=0)
    #: A tenant with this many jobs waiting or running is answered 429.
    max_tenant_jobs: int = Field(default=100_000, gt=0)
    #: How many jobs of one tenant may run at a time.
    max_tenant_running: int = Field(default=1_000, gt=0)
    #: How many submissions of one tenant an API process takes in a second, over time; what comes beyond is answered
    #: 429 unread. None = as many as come. A batch counts as one, whatever it holds.
    max_tenant_submissions_per_s: float | None = Field(default=None, ge=0.001, allow_inf_nan=False)
    #: Whether tenants may send raw tensors and embeddings, to models that take them: whoever does leaves out what a
    #: processor does to pictures and texts before a network sees them.
    raw_tensors: bool = False
    #: By name, where a tenant's limits are not those for all.
    tenants: Mapping[Tenant, TenantLimits] = Field(default_factory=dict)
    #: How long a job, its events and its files are kept after its end.
    retention_s: int = Field(default=7 * 86_400, gt=0)
    #: How long an `Idempotency-Key` is known.
    idempotency_s: int = Field(default=86_400, ge=86_400)
    #: Of a batch's JSONL file.
    max_batch_bytes: int = Field(default=200_000_000, gt=0)
    #: Of the same, how many requests.
    max_batch_lines: int = Field(default=100_000, gt=0)

    #: Which queues a worker serves, and which there are from the start.
    queues: tuple[str, ...] = ("default",)
    #: How many jobs a worker runs at a time. Their tiles share the device.
    slots: int = Field(default=2, gt=0)
    #: What the weights of loaded models may take together; None = 90 % of a CUDA device's memory, half the machine's
    #: without one. The model used least recently makes room.
    engine_memory_bytes: int | None = Field(default=None, gt=0)
    #: What an IO process may take beside what it shares with the others: a job's processor that wants more fails.
    io_memory_bytes: int = Field(default=4 * 2**30, gt=0)
    #: Modules that IO processes share from the start, for processors of plugins that are slow to import.
    io_preload: tuple[str, ...] = ()
    #: Scratch space for media and results of running attempts; None = under `data`.
    spool: Path | None = None
    #: How long a worker waits for its jobs at SIGTERM before it gives them back to the queue.
    drain_s: float = Field(default=5, ge=0)
    #: How long a worker without a hint waits before it looks for jobs by itself.
    poll_s: float = Field(default=5, gt=0)
    #: Folders and buckets that are a way in: see the reference of drop rules.
    drops: tuple[DropRule, ...] = ()
    #: How often a drop rule without events lists its bucket.
    drop_poll_s: float = Field(default=3, gt=0)
    #: How often one with events does, to find what they missed.
    drop_list_s: float = Field(default=300, gt=0)
    #: From which level on processes log.
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    #: Warn instead of refusing to start on a Redis that may forget what it answered.
    dev: bool = False

    @field_validator("drops", mode="before")
    @classmethod
    def _are_a_list(cls, drops: Any) -> Any:
        if isinstance(drops, Mapping):
            raise ValueError("drop rules are a list: write [[drops]], with two brackets on each side")  # noqa: TRY004
        return drops

    @field_validator("drops")
    @classmethod
    def _named_once(cls, drops: tuple[DropRule, ...]) -> tuple[DropRule, ...]:
        names = [rule.name for rule in drops]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two rules are named {name!r}")
        return drops

    @field_validator("allowed_hosts")
    @classmethod
    def _host_and_port(cls, pairs: tuple[str, ...]) -> tuple[str, ...]:
        for pair in pairs:
            host, _, port = pair.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError(f"{pair!r} is not host:port")
        return pairs

    @property
    def redis_address(self) -> str:
        """The Redis that single processes need; `ConfigError` without one: only `penstock up` starts its own."""
        if self.redis_url is None:
            raise ConfigError(
                "redis_url is not set: set PENSTOCK_REDIS_URL, or use `penstock up`, which starts a Valkey"
            )
        return self.redis_url

    @property
    def store_url(self) -> str:
        """The object store's address, default applied."""
        return self.object_store or (self.data.resolve() / "objects").as_uri()

    @property
    def spool_dir(self) -> Path:
        """The scratch folder, default applied."""
        return (self.spool or self.data / "spool").resolve()

    @property
    def base_url(self) -> str:
        """How clients reach the API, without a slash at the end."""
        host = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host
        return (self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def with_keys(self) -> bool:
        """Whether requests need an API key, default applied."""
        if self.access is not None:
            return self.access == "keys"
        return not (is_loopback(self.host) and is_loopback(urlsplit(self.base_url).hostname or ""))

    @property
    def signing_secret(self) -> str:
        """The secret; `ConfigError` without one: only `penstock up` makes its own."""
        if self.secret is None:
            raise ConfigError("secret is not set (PENSTOCK_SECRET): it signs the local store's links and the API keys")
        return self.secret.get_secret_value()

    def max_jobs(self, tenant: str) -> int:
        """Return how many jobs of a tenant may wait or run."""
        return self._limits(tenant).max_jobs or self.max_tenant_jobs

    def max_submissions_per_s(self, tenant: str) -> float | None:
        """Return how many submissions of a tenant an API process takes in a second; None = as many as come."""
        return self._limits(tenant).max_submissions_per_s or self.max_tenant_submissions_per_s

    @property
    def limits_rate(self) -> bool:
        """Whether any tenant's submissions in a second are limited."""
        own = any(limits.max_submissions_per_s is not None for limits in self.tenants.values())
        return own or self.max_tenant_submissions_per_s is not None

    def body_limit_bytes(self, tenant: str) -> int:
        """Return how large a tenant's request may be."""
        return self._limits(tenant).max_body_bytes or self.max_body_bytes

    def upload_limit_bytes(self, tenant: str) -> int:
        """Return how large a tenant's upload may be."""
        return self._limits(tenant).max_upload_bytes or self.max_upload_bytes

    def takes_tensors(self, tenant: str) -> bool:
        """Return whether a tenant may send raw tensors."""
        own = self._limits(tenant).raw_tensors
        return self.raw_tensors if own is None else own

    @property
    def running_caps(self) -> dict[str, int]:
        """How many jobs of a tenant may run at a time, for those with a limit of their own."""
        return {name: limits.max_running for name, limits in self.tenants.items() if limits.max_running is not None}

    def _limits(self, tenant: str) -> TenantLimits:
        return self.tenants.get(tenant) or TenantLimits()

    @property
    def model_cache_dir(self) -> Path:
        """Where fetched models are kept, default applied."""
        return (self.model_cache or Path.home() / ".cache" / "penstock" / "models").resolve()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (pydantic-settings names it)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then the environment, then the TOML file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, settings_file())


def settings_file() -> Path:
    """Return where the settings are read from, whether or not there is such a file."""
    return Path(os.environ.get("PENSTOCK_CONFIG") or "penstock.toml")


def load_settings(**overrides: Any) -> Settings:
    """Return the settings; raise `ConfigError` with every wrong field named."""
    named = os.environ.get("PENSTOCK_CONFIG")
    if named and not Path(named).is_file():
        raise ConfigError(f"PENSTOCK_CONFIG names {named}, which is not a file")
    try:
        return Settings(**overrides)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(toml_complaint(settings_file(), error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{settings_file()} is not UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read {settings_file()}: {error.strerror}") from error
    except SettingsError as error:  # a PENSTOCK_* variable that should be JSON
        raise ConfigError(f"wrong settings: {error}") from error
    except ValidationError as error:
        wrong = wrong_fields(error, whole="settings")
        raise ConfigError(f"wrong settings: {wrong}") from error


def require_safe_access(settings: Settings) -> None:
    """Raise `ConfigError` where others than this machine could reach an open API, or links would lead nowhere."""
    if not settings.with_keys and not is_loopback(settings.host):
        raise ConfigError(
            f"host is {settings.host}, but without API keys the service listens on a loopback address only: "
            "set access = 'keys'"
        )
    if settings.host in ("0.0.0.0", "::", "[::]") and settings.public_url is None:  # noqa: S104  (it is looked for)
        raise ConfigError(
            f"host is {settings.host}, every address of this machine: say in public_url how clients reach it "
            f"(PENSTOCK_PUBLIC_URL=http://this-machine:{settings.port}), because links lead there"
        )


def api_key() -> str | None:
    """Return the API key that the command line sends (`PENSTOCK_API_KEY`)."""
    return os.environ.get("PENSTOCK_API_KEY") or None


def state_dir() -> Path:
    """Return where the command line notes what it would go on with (`XDG_STATE_HOME`)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock"


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
