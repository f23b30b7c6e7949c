"""The settings: read once from `penstock.toml` and the environment, frozen, checked together, then passed on.

Nothing else reads the environment. Sources, strongest first: arguments, `PENSTOCK_*` variables (nested with `__`),
`penstock.toml` in the working directory or the file that `PENSTOCK_CONFIG` names.
"""

from __future__ import annotations

import ipaddress
import os
import re
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

from penstock.errors import ConfigError

Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
DEFAULT_TENANT = "default"


def _store_address(url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path
    if not local and not (parts.scheme == "s3" and parts.netloc):
        raise ValueError(f"{url!r} is neither s3://bucket nor file:///folder")
    return url


StoreAddress = Annotated[str, AfterValidator(_store_address)]


class DropRule(BaseModel):
    """An object that lands under `bucket`/`prefix` becomes one job per object version."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    #: `s3://bucket` or `file:///folder`.
    bucket: StoreAddress
    prefix: str = ""
    suffixes: tuple[str, ...] = (".tif", ".tiff")
    model: str
    #: The job's `input` without its media reference; `scene.tif.json` beside the object overrides it key by key.
    input: Mapping[str, Any] = Field(default_factory=dict)
    #: The field of the model's input that takes the object.
    field: str = "scene"
    #: Where results and markers go, in the same bucket. It may not lie under `prefix` unless it says otherwise.
    output_prefix: str
    tenant: Tenant = DEFAULT_TENANT

    @model_validator(mode="after")
    def _own_outputs_never_trigger(self) -> DropRule:
        if self.output_prefix.startswith(self.prefix):
            raise ValueError(f"output_prefix {self.output_prefix!r} lies under prefix {self.prefix!r}")
        return self


class S3(BaseModel):
    """The S3-compatible service behind every `s3://` address."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint_url: str | None = None
    region: str = "us-east-1"
    #: None = boto3's own search (environment, profile, instance role).
    access_key_id: str | None = None
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
    s3: S3 = S3()
    #: `manifest`: accepted jobs and their ends lie in the object store too and outlive the loss of Redis, which costs a
    #: put before the 202 and one at the end; `redis`: they are as safe as Redis is.
    durability: Literal["manifest", "redis"] = "manifest"
    #: Buckets that jobs may name as `s3://bucket/key`, beside those of the drop rules.
    s3_input_buckets: tuple[str, ...] = ()
    #: More catalogues, read after the shipped one.
    models: tuple[Path, ...] = ()

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    #: How clients reach the API, for links; None = `http://host:port`.
    public_url: str | None = None
    #: Signs the local store's links and nothing else; `penstock up` makes one under `data`.
    secret: SecretStr | None = None

    #: `host:port` pairs that jobs and webhooks may name although they are not public (exactly these pairs); a pair on
    #: this list is also the only kind of URL that may be fetched at all unless `fetch_any_public_host` is set.
    allowed_hosts: tuple[str, ...] = ()
    fetch_any_public_host: bool = False
    #: The same for webhooks, whose receivers are usually public.
    webhook_any_public_host: bool = True
    max_body_bytes: int = Field(default=1_000_000, gt=0)
    #: A request whose body brings nothing for so long is answered 408 and its connection closed.
    body_idle_s: float = Field(default=30, gt=0)
    max_upload_bytes: int = Field(default=20_000_000_000, gt=0)
    upload_expires_s: int = Field(default=3600, gt=0)
    link_expires_s: int = Field(default=3600, gt=0)

    lease_s: float = Field(default=30, ge=1)
    max_crashes: int = Field(default=3, gt=0)
    #: A queue with this many waiting jobs answers 503.
    max_queued: int = Field(default=1_000_000, gt=0)
    #: A tenant with this many jobs waiting or running is answered 429.
    max_tenant_jobs: int = Field(default=100_000, gt=0)
    #: How many jobs of one tenant may run at a time.
    max_tenant_running: int = Field(default=1_000, gt=0)
    retention_s: int = Field(default=7 * 86_400, gt=0)
    idempotency_s: int = Field(default=86_400, ge=86_400)

    queues: tuple[str, ...] = ("default",)
    #: How many jobs a worker runs at a time. Their tiles share the device.
    slots: int = Field(default=2, gt=0)
    #: Scratch space for media and results of running attempts; None = under `data`.
    spool: Path | None = None
    #: How long a worker waits for its jobs at SIGTERM before it gives them back to the queue.
    drain_s: float = Field(default=5, ge=0)
    poll_s: float = Field(default=5, gt=0)
    drops: tuple[DropRule, ...] = ()
    drop_poll_s: float = Field(default=3, gt=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    #: Warn instead of refusing to start on a Redis that may forget what it answered.
    dev: bool = False

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
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")

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
        raise ConfigError(_place(settings_file(), str(error))) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{settings_file()} is not UTF-8") from error
    except OSError as error:
        raise ConfigError(f"cannot read {settings_file()}: {error.strerror}") from error
    except SettingsError as error:  # a PENSTOCK_* variable that should be JSON
        raise ConfigError(f"wrong settings: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"wrong settings: {wrong}") from error


def require_loopback(settings: Settings) -> None:
    """Raise `ConfigError` where others than this machine could reach an API that asks nobody who they are."""
    if not is_loopback(settings.host):
        raise ConfigError(
            f"host is {settings.host}, but without API keys the service listens on a loopback address only"
        )


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _place(file: Path, complaint: str) -> str:
    """Return what tomllib says with the place in front: `penstock.toml line 2: ...`."""
    at = re.search(r" \(at line (\d+), ", complaint)
    return f"{file}: {complaint}" if at is None else f"{file} line {at[1]}: {complaint[: at.start()]}"
