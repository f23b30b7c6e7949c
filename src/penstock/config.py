"""The settings: read once from `penstock.toml` and the environment, validated together, frozen, then passed on.

Nothing else reads the environment. Sources, strongest first: arguments; `PENSTOCK_*` variables (nested with `__`);
`penstock.toml` in the working directory, or the file named by `PENSTOCK_CONFIG`.
"""

from __future__ import annotations

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from penstock.config_tables import S3, AccessProfile, DropRule, EventTarget, Origins, StoreAddress, Tenant, TenantLimits
from penstock.errors import ConfigError
from penstock.json_body import toml_complaint, wrong_fields
from penstock.multipart import MIN_PART_BYTES
from penstock.scaling import ScalingBounds

_NO_LIMITS = TenantLimits()
NamedT = TypeVar("NamedT", DropRule, AccessProfile)


class Settings(BaseSettings):
    """All settings of Penstock. Units are in the names."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", env_nested_delimiter="__", frozen=True, extra="forbid")

    #: Folder in which `penstock up` keeps Valkey's files, the local object store and the secret.
    data: Path = Path("penstock-data")
    #: Address of Redis, or of the Sentinels that watch it (`redis+sentinel://host:26379,other:26379/mymaster`);
    #: None = `penstock up` starts a bundled Valkey under `data`.
    redis_url: str | None = None
    #: True if the Redis, one that does not allow `CONFIG GET`, is known to keep each write that it has answered.
    redis_durable: bool = False
    #: Address of the object store: `s3://bucket` or `file:///folder`; None = a local store under `data`.
    object_store: StoreAddress | None = None
    #: The S3-compatible service behind `s3://` addresses.
    s3: S3 = S3()
    #: Bounds of the number of workers that each queue wants.
    scaling: ScalingBounds = ScalingBounds()
    #: `manifest`: accepted jobs and their outcomes are also written to the object store and survive the loss of Redis;
    #: this costs one put before the 202 and one at the end. `redis`: jobs are as durable as Redis is.
    durability: Literal["manifest", "redis"] = "manifest"
    #: Buckets whose objects jobs may name as `s3://bucket/key`, besides the buckets of the drop rules.
    s3_input_buckets: tuple[str, ...] = ()
    #: Files of further catalogues, read after the shipped one. `package:MODULE/FILE` lies in an installed package.
    models: tuple[Path, ...] = ()
    #: Folder for models fetched from the hub and from S3; None = `~/.cache/penstock/models`.
    model_cache: Path | None = None
    #: A `uv.toml` with the indexes, find-links and so on by which environments of models are built; None = uv's own.
    uv_config: Path | None = None
    #: Bytes of built environments on this machine beyond which the least recently used ones are removed.
    environments_bytes: int = Field(default=50 << 30, ge=0)

    #: Address on which the API listens.
    host: str = "127.0.0.1"
    #: Port on which the API listens; 0 = a free one.
    port: int = Field(default=8080, ge=0, le=65535)
    #: Address under which clients reach the API, used in links; None = `http://host:port`.
    public_url: str | None = None
    #: Access to the API. `keys`: every request needs an API key, which determines the tenant. `open`: no keys, one
    #: tenant `default`, on a loopback address only. None = `open` if `host` and `public_url` are loopback, else `keys`.
    access: Literal["open", "keys"] | None = None
    #: Origins of web pages (`https://maps.example.org`) whose scripts may call the API (CORS); `*` = every page, which
    #: needs API keys. Browsers send no cookies or other credentials of their own; pages send a key as a header.
    cors_origins: Origins = ()
    #: Secret that signs the local store's links and the API keys: a new secret invalidates all keys. `penstock up`
    #: creates one under `data`; several API processes need the same secret.
    secret: SecretStr | None = None

    #: Non-public `host:port` pairs that jobs and webhooks may name (exactly these pairs). Jobs may name no other hosts,
    #: unless `fetch_any_public_host` is set.
    allowed_hosts: tuple[str, ...] = ()
    #: Permission for jobs to name media on every public host, not only on `allowed_hosts`.
    fetch_any_public_host: bool = False
    #: Ways to read files of hosts and buckets that want credentials; see the reference of access profiles below.
    access_profiles: tuple[AccessProfile, ...] = ()
    #: Bytes a second that a server on the web must send, on average over 30 s in which a worker waits for it; a slower
    #: server ends the attempt with `fetch_failed`, and the job is tried again. 0 = no limit. Slow lines send many times
    #: the default; a server that drips, to hold a worker, sends less.
    fetch_bytes_per_s: int = Field(default=1_000, ge=0)
    #: Permission for webhooks to name every public host; most receivers are public.
    webhook_any_public_host: bool = True
    #: Seconds that old secrets sign webhooks besides the new one, unless the rotation sets its own overlap.
    webhook_secret_overlap_s: int = Field(default=86_400, ge=0, le=7 * 86_400)
    #: Bytes of JSON of a job's output, its text and data, that Redis keeps, and that lists, events, webhooks and
    #: `Prefer: wait` carry. Larger ones lie in the object store and are read at the job's link. 0 = none.
    inline_output_bytes: int = Field(default=32_768, ge=0, le=1_000_000)
    #: Bytes of a request, and of a line of a batch, at most; a larger one is answered 413.
    max_body_bytes: int = Field(default=1_000_000, gt=0)
    #: Bytes of the media that a job carries as `data:` URLs, decoded and together, at most; 0 = none. The request that
    #: holds them may have `max_body_bytes`.
    max_inline_bytes: int = Field(default=10_000_000, ge=0)
    #: Seconds without data after which an unfinished request is answered 408 and its connection closed.
    body_idle_s: float = Field(default=30, gt=0)
    #: Bytes of an upload, and of an object that a job names, at most.
    max_upload_bytes: int = Field(default=20_000_000_000, gt=0)
    #: Seconds that the link of an upload is valid.
    upload_expires_s: int = Field(default=3600, gt=0)
    #: Bytes of each part of a multipart upload except the last.
    upload_part_bytes: int = Field(default=16 * 2**20, ge=MIN_PART_BYTES, le=2**30)
    #: Seconds that the signed link of an artifact is valid.
    link_expires_s: int = Field(default=3600, gt=0)
    #: Address of `penstock tiles`, as maps reach it; None = no links to map tiles. Needs `secret`, which signs them.
    tiles_url: str | None = Field(default=None, pattern=r"^https?://[^?#]+$")
    #: Seconds that the links to map tiles are valid, at least; an hour more at most.
    tile_link_expires_s: int = Field(default=7 * 86_400, gt=0)
    #: Seconds that /pooling and /openai keep a request open while its job runs.
    facade_wait_s: float = Field(default=600, gt=0)

    #: Seconds that a lease lasts after a worker's last heartbeat.
    lease_s: float = Field(default=30, ge=1)
    #: Workers that a job may lose without progress before it fails with `worker_lost`.
    max_crashes: int = Field(default=3, gt=0)
    #: Waiting jobs of a queue, and parts of jobs that wait, at which further submissions are answered 503.
    max_queued: int = Field(default=1_000_000, gt=0)
    #: Waiting and running jobs of a tenant at which further submissions are answered 429.
    max_tenant_jobs: int = Field(default=100_000, gt=0)
    #: Jobs that may follow one job (`after`).
    max_followers: int = Field(default=100, gt=0, le=1_000)
    #: Jobs before a job in the longest chain up to it, at most.
    max_chain_depth: int = Field(default=10, gt=0, le=100)
    #: Jobs of one tenant that may run at once.
    max_tenant_running: int = Field(default=1_000, gt=0)
    #: Submissions per second that all API processes together accept from one tenant, on average; further ones are
    #: answered 429 before their body is read. None = no limit. A batch counts as one submission.
    max_tenant_submissions_per_s: float | None = Field(default=None, ge=0.001, allow_inf_nan=False)
    #: Seconds of devices that the jobs of a tenant which end on one day (UTC) may have used; afterwards further
    #: submissions are answered 429 until the day's end. Accepted jobs still run. None = no limit.
    max_tenant_device_s_per_day: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    #: Bytes of a tenant's objects (uploads, results, requests) at which further submissions and uploads are answered
    #: 403. The keeper lists the objects once an hour; results and announced uploads count at once. None = no limit.
    max_tenant_kept_bytes: int | None = Field(default=None, gt=0)
    #: Price of a device second, which dry runs of submissions tell. None = no price.
    price_per_device_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    #: Unit of the price.
    currency: str = "EUR"
    #: Days for which the daily sums of usage are kept.
    usage_days: int = Field(default=400, ge=2, le=4000)
    #: Permission for tenants to send raw tensors and embeddings to models that accept them. Raw tensors bypass the
    #: processor's preparation of images and texts.
    raw_tensors: bool = False
    #: Limits of single tenants, by tenant name.
    tenants: Mapping[Tenant, TenantLimits] = Field(default_factory=dict)
    #: Seconds that a job, its events and its files are kept after its end.
    retention_s: int = Field(default=7 * 86_400, gt=0)
    #: Seconds that an `Idempotency-Key` is remembered.
    idempotency_s: int = Field(default=86_400, ge=86_400)
    #: Bytes of a batch's JSONL file, at most.
    max_batch_bytes: int = Field(default=200_000_000, gt=0)
    #: Requests in a batch's JSONL file, at most.
    max_batch_lines: int = Field(default=100_000, gt=0)

    #: Queues that a worker serves; they exist from the start.
    queues: tuple[str, ...] = ("default",)
    #: Jobs that a worker runs at once. Their tiles share the device.
    slots: int = Field(default=2, gt=0)
    #: Further jobs, beside those in `slots`, whose media a worker fetches from the web, at most. They need room in
    #: `spool` and no slot. One tenant has at most a quarter of them beyond `slots`, one host half.
    fetch_slots: int = Field(default=8, ge=0)
    #: Bytes of the weights of all loaded models, at most; None = 90 % of a CUDA device's memory, or half the machine's
    #: memory without such a device, divided by `device_workers`. When a model needs room, the model used least recently
    #: is unloaded.
    engine_memory_bytes: int | None = Field(default=None, gt=0)
    #: Workers that share this worker's device, or the machine where there is none. `penstock up` sets it.
    device_workers: int = Field(default=1, gt=0)
    #: Bytes that an IO process may allocate beyond the memory shared with others; a job that needs more fails.
    io_memory_bytes: int = Field(default=4 * 2**30, gt=0)
    #: Bytes of one file that an IO process writes, at most.
    io_file_bytes: int = Field(default=16 * 2**30, gt=0)
    #: Jobs of an IO process: `tenant` = up to 64 jobs of one tenant and one model, the last of them begun within 60 s
    #: after the process started; `never` = one job only, which costs about 10 ms of processor time more for each job.
    io_reuse: Literal["tenant", "never"] = "tenant"
    #: Permission for processors to start programs and processes. They end with the job, and each job has an IO process
    #: of its own then; the limits of memory apply to each of them by itself.
    io_programs: bool = False
    #: Modules that all IO processes share, for plugins whose processors are slow to import.
    io_preload: tuple[str, ...] = ()
    #: Folder for media and results of running attempts; None = under `data`.
    spool: Path | None = None
    #: Division of scenes among workers. `idle`: where workers of the queue have nothing else to do, or `penstock up`
    #: starts workers when jobs want them. `always`: every scene that is large enough, for queues whose workers an
    #: autoscaler starts.
    scene_sharing: Literal["idle", "always"] = "idle"
    #: Parts of one scene that several workers compute, at most; 1 = one worker computes each scene.
    scene_parts: int = Field(default=16, ge=1, le=256)
    #: Tiles of a part, at least, on average: each part fetches its rows of the scene and begins anew.
    scene_part_tiles: int = Field(default=32, ge=1)
    #: Seconds that an attempt waits for an object store that is away, in all, with its results in the scratch folder.
    #: They do not count for its execution timeout. An attempt that waited longer fails and may be retried.
    store_wait_s: float = Field(default=14_400, ge=0)
    #: Seconds that a worker waits for its jobs at SIGTERM before it returns them to the queue.
    drain_s: float = Field(default=5, ge=0)
    #: Seconds without a job after which a worker exits with code 0; 0 = it stays. Time in which it prepares its models,
    #: or in which a store does not answer, does not count.
    idle_exit_s: float = Field(default=0, ge=0)
    #: Jobs after which a worker claims no further one; when they have ended, it exits with code 0. 0 = no limit.
    max_worker_jobs: int = Field(default=0, ge=0)
    #: Seconds after which a worker without hints polls for jobs.
    poll_s: float = Field(default=5, gt=0)
    #: Watched folders and buckets; see the reference of drop rules.
    drops: tuple[DropRule, ...] = ()
    #: Seconds between two listings of a drop rule without events.
    drop_poll_s: float = Field(default=3, gt=0)
    #: Seconds between two listings of a drop rule with events, which find objects whose events were lost.
    drop_list_s: float = Field(default=300, gt=0)
    #: SNS topics and SQS queues to which webhook endpoints may lead; see the reference of event targets below.
    event_targets: tuple[EventTarget, ...] = ()
    #: Subscriptions of one tenant.
    max_tenant_subscriptions: int = Field(default=100, ge=0)
    #: Seconds between two looks of a subscription at its catalogue, at least.
    min_subscription_every_s: float = Field(default=60, gt=0)
    #: Lowest level of the messages that processes log.
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    #: Start on a Redis without durable storage with a warning, instead of refusing to start.
    dev: bool = False

    @field_validator("drops", "access_profiles", "event_targets", mode="before")
    @classmethod
    def _are_a_list(cls, found: Any, info: ValidationInfo) -> Any:
        if isinstance(found, Mapping):
            raise ValueError(f"this is a list: write [[{info.field_name}]], with double brackets")  # noqa: TRY004
        return found

    @field_validator("drops", "access_profiles")
    @classmethod
    def _named_once(cls, found: tuple[NamedT, ...]) -> tuple[NamedT, ...]:
        names = [each.name for each in found]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two have the name {name!r}")
        return found

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
        """The Redis address; `ConfigError` if it is not set: only `penstock up` starts its own Redis."""
        if self.redis_url is None:
            raise ConfigError(
                "redis_url is not set: set PENSTOCK_REDIS_URL, or use `penstock up`, which starts a Valkey"
            )
        return self.redis_url

    @property
    def store_url(self) -> str:
        """The object store's address, with the default applied."""
        return self.object_store or (self.data.resolve() / "objects").as_uri()

    @property
    def spool_dir(self) -> Path:
        """The scratch folder, with the default applied."""
        return (self.spool or self.data / "spool").resolve()

    @property
    def base_url(self) -> str:
        """The address under which clients reach the API, without a trailing slash."""
        host = f"[{self.host.strip('[]')}]" if ":" in self.host else self.host
        return (self.public_url or f"http://{host}:{self.port}").rstrip("/")

    @property
    def with_keys(self) -> bool:
        """True if requests need an API key, with the default applied."""
        if self.access is not None:
            return self.access == "keys"
        return not (is_loopback(self.host) and is_loopback(urlsplit(self.base_url).hostname or ""))

    @property
    def signing_secret(self) -> str:
        """The signing secret; `ConfigError` if it is not set: only `penstock up` creates its own."""
        if self.secret is None:
            raise ConfigError("secret is not set (PENSTOCK_SECRET): it signs the local store's links and the API keys")
        return self.secret.get_secret_value()

    def max_jobs(self, tenant: str) -> int:
        """Return the number of a tenant's jobs that may wait or run at once."""
        return self._limits(tenant).max_jobs or self.max_tenant_jobs

    def max_submissions_per_s(self, tenant: str) -> float | None:
        """Return a tenant's submissions per second; None = no limit."""
        return self._limits(tenant).max_submissions_per_s or self.max_tenant_submissions_per_s

    @property
    def limits_rate(self) -> bool:
        """True if the submissions per second of any tenant are limited."""
        own = any(limits.max_submissions_per_s is not None for limits in self.tenants.values())
        return own or self.max_tenant_submissions_per_s is not None

    def body_limit_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's request, at most."""
        return self._limits(tenant).max_body_bytes or self.max_body_bytes

    def upload_limit_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's upload, at most."""
        return self._limits(tenant).max_upload_bytes or self.max_upload_bytes

    def device_s_per_day(self, tenant: str) -> float | None:
        """Return the seconds of devices that a tenant's jobs may use in a day; None = no limit."""
        return self._limits(tenant).max_device_s_per_day or self.max_tenant_device_s_per_day

    def kept_limit_bytes(self, tenant: str) -> int | None:
        """Return the bytes of objects that a tenant may keep; None = no limit."""
        return self._limits(tenant).max_kept_bytes or self.max_tenant_kept_bytes

    def takes_tensors(self, tenant: str) -> bool:
        """Return True if a tenant may send raw tensors."""
        own = self._limits(tenant).raw_tensors
        return self.raw_tensors if own is None else own

    @property
    def running_caps(self) -> dict[str, int]:
        """The running jobs allowed at once, for each tenant with a limit of its own."""
        return {name: limits.max_running for name, limits in self.tenants.items() if limits.max_running is not None}

    def _limits(self, tenant: str) -> TenantLimits:
        return self.tenants.get(tenant, _NO_LIMITS)

    @property
    def model_cache_dir(self) -> Path:
        """The folder for fetched models, with the default applied."""
        return (self.model_cache or default_model_cache()).resolve()

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
        return init_settings, env_settings, InitSettingsSource(settings_cls, _file_values())


def default_model_cache() -> Path:
    """Return the folder for fetched models and built environments where no setting names one."""
    return Path.home() / ".cache" / "penstock" / "models"


def settings_file() -> Path:
    """Return the path of the settings file, which need not exist."""
    return Path(os.environ.get("PENSTOCK_CONFIG") or "penstock.toml")


def _file_values() -> dict[str, Any]:
    """Return the values of the settings file; none where there is no file."""
    path = settings_file()
    return tomllib.loads(path.read_text(encoding="utf-8-sig")) if path.is_file() else {}


def load_settings(**overrides: Any) -> Settings:
    """Return the settings; raise `ConfigError` that names every invalid field."""
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
    except SettingsError as error:  # a PENSTOCK_* variable that must be JSON
        raise ConfigError(f"the settings are invalid: {error}") from error
    except ValidationError as error:
        wrong = wrong_fields(error, whole="settings", known=Settings.model_fields)
        raise ConfigError(f"the settings are invalid: {wrong}") from error


def require_safe_access(settings: Settings) -> None:
    """Raise `ConfigError` if other machines or all pages could reach an open API, or if links would lead nowhere."""
    if not settings.with_keys and not is_loopback(settings.host):
        raise ConfigError(
            f"host is {settings.host}, but without API keys the service may listen on a loopback address only: "
            "set access = 'keys'"
        )
    if not settings.with_keys and "*" in settings.cors_origins:
        raise ConfigError(
            "cors_origins is '*', but without API keys any page that you visit could run and delete jobs: "
            "name the origins, or set access = 'keys'"
        )
    if settings.host in ("0.0.0.0", "::", "[::]") and settings.public_url is None:  # noqa: S104  (it is looked for)
        raise ConfigError(
            f"host is {settings.host}, every address of this machine: set public_url to the address that clients use "
            f"(PENSTOCK_PUBLIC_URL=http://this-machine:{settings.port}), because links lead there"
        )


def api_key() -> str | None:
    """Return the API key of the command line (`PENSTOCK_API_KEY`)."""
    return os.environ.get("PENSTOCK_API_KEY") or None


def wants_spans() -> bool:
    """Return True where the OTEL_* variables ask for spans by OTLP; the SDK of OpenTelemetry reads the rest of them."""
    exporters = {name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "").split(",")} - {""}
    named = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or (exporters and "otlp" not in exporters):
        return False
    return bool(exporters) or any(os.environ.get(name) for name in named)


def state_dir() -> Path:
    """Return the folder in which the command line stores the state of interrupted work (`XDG_STATE_HOME`)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock"


def is_loopback(host: str) -> bool:
    """Return True if a host name means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
