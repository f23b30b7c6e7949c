"""Generated parts of pages, inserted at `<!-- made: NAME -->` on a separate line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from docs.generator import commands, error_codes, facades, http_api, states, tiling
from docs.generator.comments import Undocumented
from docs.generator.fields import Sections
from penstock.api.schemas.jobs import (
    ArtifactView,
    ErrorView,
    JobLinksView,
    JobView,
    OutputView,
    PartsView,
    ProgressView,
)
from penstock.api.schemas.provenance import InputView, MadeByModelView, OtherInputsView, ProvenanceView
from penstock.config import Settings
from penstock.config_tables import S3, AccessProfile, DropRule, EventTarget, Secret, TenantLimits
from penstock.models import Limits, Model, Step
from penstock.requests import JobRequest, WebhookRequest
from penstock.scaling import ScalingBounds

_PLACE = re.compile(r"^<!-- made: ([a-z0-9-]+) -->$", re.M)
_IN_SETTINGS = {
    "S3": "s3.endpoint_url", "TenantLimits": "tenants.max_jobs", "AccessProfile": "access_profiles.name",
    "EventTarget": "event_targets.arn",
}  # fmt: skip
_IN_A_JOB = {
    "ProgressView": "progress.done", "PartsView": "parts.number", "OutputView": "output.text",
    "ArtifactView": "artifacts.name", "ErrorView": "error.code", "JobLinksView": "links.self",
    "ProvenanceView": "provenance.model", "MadeByModelView": "provenance.model.name",
    "InputView": "provenance.inputs.place", "OtherInputsView": "provenance.other_inputs.number",
}  # fmt: skip


def _output(prefix: str = "", level: int = 3) -> Sections:
    return Sections("serialization", prefix=prefix, level=level, links=_IN_A_JOB)


#: Generator of each part, by name.
MADE: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "settings": lambda: Sections(env_prefix="PENSTOCK_", links=_IN_SETTINGS).of(Settings),
        "settings-s3": lambda: Sections(env_prefix="PENSTOCK_S3__", prefix="s3.").of(S3),
        "settings-scaling": lambda: Sections(env_prefix="PENSTOCK_SCALING__", prefix="scaling.").of(ScalingBounds),
        "settings-tenant": lambda: Sections(prefix="tenants.").of(TenantLimits),
        "settings-access": lambda: Sections(
            prefix="access_profiles.", links={"Secret": "access_profiles.secret.env"}
        ).of(AccessProfile),
        "settings-secret": lambda: Sections(prefix="access_profiles.secret.").of(Secret),
        "settings-target": lambda: Sections(prefix="event_targets.").of(EventTarget),
        "drop-rule": lambda: Sections().of(DropRule),
        "model": lambda: Sections(links={"Limits": "limits.max_bytes", "Step": "post_processors.use"}).of(Model),
        "limits": lambda: Sections(prefix="limits.").of(Limits),
        "step": lambda: Sections(prefix="post_processors.").of(Step),
        "job-request": lambda: Sections(prefix="request.", links={"WebhookRequest": "webhook.url"}).of(JobRequest),
        "job-request-webhook": lambda: Sections(prefix="webhook.").of(WebhookRequest),
        "job": lambda: _output().of(JobView),
        "job-progress": lambda: _output("progress.").of(ProgressView),
        "job-parts": lambda: _output("parts.").of(PartsView),
        "job-output": lambda: _output("output.").of(OutputView),
        "job-artifact": lambda: _output("artifacts.").of(ArtifactView),
        "job-error": lambda: _output("error.").of(ErrorView),
        "job-provenance": lambda: _output("provenance.").of(ProvenanceView),
        "job-provenance-model": lambda: _output("provenance.model.").of(MadeByModelView),
        "job-provenance-input": lambda: _output("provenance.inputs.").of(InputView),
        "job-provenance-others": lambda: _output("provenance.other_inputs.").of(OtherInputsView),
        "job-links": lambda: _output("links.").of(JobLinksView),
        "error-codes": error_codes.tables,
        "operations": http_api.operations,
        "facades": facades.table,
        "objects": http_api.objects,
        "commands": commands.commands,
    }
)
#: Figures, by their paths on the site.
FIGURES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "explanation/states.svg": states.figure,
        "explanation/halo.svg": tiling.halo_figure,
        "explanation/hann.svg": tiling.hann_figure,
    }
)


def filled(markdown: str) -> str:
    """Return a page with its generated parts. Raises `Undocumented` for anything without a description."""
    return _PLACE.sub(lambda found: _made(found[1]), markdown)


def _made(name: str) -> str:
    if name not in MADE:
        raise Undocumented(f"there is no generated part {name!r}; known parts: {', '.join(MADE)}")
    return MADE[name]()
