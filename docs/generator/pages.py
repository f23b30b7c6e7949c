"""Which place of a page is filled by what: `<!-- made: NAME -->` on a line of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from docs.generator import commands, error_codes, facades, http_api, states, tiling
from docs.generator.comments import Undocumented
from docs.generator.fields import Sections
from penstock.api.schemas import ArtifactView, ErrorView, JobView, LinksView, OutputView, ProgressView
from penstock.config import S3, DropRule, Settings, TenantLimits
from penstock.models import Limits, Model, Step
from penstock.requests import JobRequest, WebhookRequest

_PLACE = re.compile(r"^<!-- made: ([a-z0-9-]+) -->$", re.M)
_IN_SETTINGS = {"S3": "s3.endpoint_url", "TenantLimits": "tenants.max_jobs"}
_IN_A_JOB = {
    "ProgressView": "progress.done", "OutputView": "output.text", "ArtifactView": "artifacts.name",
    "ErrorView": "error.code", "LinksView": "links.self",
}  # fmt: skip


def _told(prefix: str = "", level: int = 3) -> Sections:
    return Sections("serialization", prefix=prefix, level=level, links=_IN_A_JOB)


#: What fills each place.
MADE: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "settings": lambda: Sections(env_prefix="PENSTOCK_", links=_IN_SETTINGS).of(Settings),
        "settings-s3": lambda: Sections(env_prefix="PENSTOCK_S3__", prefix="s3.").of(S3),
        "settings-tenant": lambda: Sections(prefix="tenants.").of(TenantLimits),
        "drop-rule": lambda: Sections().of(DropRule),
        "model": lambda: Sections(links={"Limits": "limits.max_bytes", "Step": "post_processors.use"}).of(Model),
        "limits": lambda: Sections(prefix="limits.").of(Limits),
        "step": lambda: Sections(prefix="post_processors.").of(Step),
        "job-request": lambda: Sections(prefix="request.", links={"WebhookRequest": "webhook.url"}).of(JobRequest),
        "job-request-webhook": lambda: Sections(prefix="webhook.").of(WebhookRequest),
        "job": lambda: _told().of(JobView),
        "job-progress": lambda: _told("progress.").of(ProgressView),
        "job-output": lambda: _told("output.").of(OutputView),
        "job-artifact": lambda: _told("artifacts.").of(ArtifactView),
        "job-error": lambda: _told("error.").of(ErrorView),
        "job-links": lambda: _told("links.").of(LinksView),
        "error-codes": error_codes.tables,
        "operations": http_api.operations,
        "facades": facades.table,
        "objects": http_api.objects,
        "commands": commands.commands,
    }
)
#: Pictures of the site, by their paths on it.
FIGURES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "explanation/states.svg": states.figure,
        "explanation/halo.svg": tiling.halo_figure,
        "explanation/hann.svg": tiling.hann_figure,
    }
)


def filled(markdown: str) -> str:
    """Return a page with its places filled; raise `Undocumented` for what has no description."""
    return _PLACE.sub(lambda found: _made(found[1]), markdown)


def _made(name: str) -> str:
    if name not in MADE:
        raise Undocumented(f"nothing makes {name!r}; there are {', '.join(MADE)}")
    return MADE[name]()
