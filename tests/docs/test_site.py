"""The documentation's site: everything that users meet is in it, and every link leads somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, urlsplit

import pytest
import typer.main
from pydantic import BaseModel

from docs.generator import openapi
from docs.generator.comments import Undocumented
from docs.generator.facades import facade_routes
from docs.generator.fields import Sections
from docs.generator.pages import filled
from docs.generator.repository import relinked
from docs.generator.schema import words
from docs.generator.states import TRANSITIONS
from penstock import client
from penstock.api.errors import STATUS
from penstock.api.schemas.jobs import (
    ArtifactView,
    ErrorView,
    JobLinksView,
    JobView,
    OutputView,
    PartsView,
    ProgressView,
)
from penstock.cli.main import app
from penstock.config import Settings
from penstock.config_tables import S3, DropRule, TenantLimits
from penstock.errors import PenstockError
from penstock.jobs import State
from penstock.models import Limits, Model
from penstock.requests import JobRequest, WebhookEvent, WebhookRequest
from penstock.scaling import ScalingBounds
from tests.docs.conftest import ROOT, build
from tests.support.doc_site import Page, Site

pytestmark = [pytest.mark.timeout(300), pytest.mark.breadth]

#: Each page of fields: its model, and the prefix of its fields' names.
FIELDS: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("settings", Settings, ""), ("settings", S3, "s3."), ("settings", ScalingBounds, "scaling."),
    ("settings", TenantLimits, "tenants."),
    ("models", Model, ""), ("models", Limits, "limits."), ("drop-rules", DropRule, ""), ("job", JobView, ""),
    ("job", ProgressView, "progress."), ("job", OutputView, "output."), ("job", ArtifactView, "artifacts."),
    ("job", ErrorView, "error."), ("job", JobLinksView, "links."), ("job", JobRequest, "request."),
    ("job", WebhookRequest, "webhook."), ("job", PartsView, "parts."),
)  # fmt: skip


@pytest.mark.parametrize(("page", "model", "prefix"), FIELDS, ids=lambda value: getattr(value, "__name__", None))
def test_every_field_is_described(site: Site, page: str, model: type[BaseModel], prefix: str) -> None:
    below = site.page(f"reference/{page}.html").below
    for name, field in model.model_fields.items():
        told = below[prefix + (field.serialization_alias or name)].strip().splitlines()
        assert len(told[2].split()) > 1, f"{name} says no more than {told}"


def test_every_setting_names_its_variable_and_default(site: Site) -> None:
    below = site.page("reference/settings.html").below
    for name in Settings.model_fields:
        assert f"PENSTOCK_{name.upper()}" in below[name]
    assert "whole number, above 0 · default 2" in below["slots"]
    assert "manifest or redis" in below["durability"]
    assert "PENSTOCK_S3__ENDPOINT_URL" in below["s3.endpoint_url"]
    assert "required" in site.page("reference/drop-rules.html").below["bucket"]


def test_a_field_without_a_description_fails_the_build() -> None:
    class Silent(BaseModel):
        told: int = 1

    with pytest.raises(Undocumented, match=r"Silent\.told"):
        Sections().of(Silent)


def test_a_place_that_nothing_fills_fails_the_build() -> None:
    with pytest.raises(Undocumented, match="'weather'"):
        filled("<!-- made: weather -->")


def _tree(cls: type[PenstockError]) -> Iterator[type[PenstockError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__.startswith("penstock."):
            yield from _tree(child)


def test_every_error_code_has_its_status_and_meaning(site: Site) -> None:
    below = site.page("reference/errors.html").below
    for cls in _tree(PenstockError):
        code, statuses, retryable, meaning = (cell.strip() for cell in below[cls.code].strip().split("\n")[:4])
        status = next(STATUS[each] for each in cls.__mro__ if each in STATUS)
        assert (code, retryable) == (cls.code, "yes" if cls.retryable else "no")
        assert str(status) in statuses.split(", ")
        assert meaning
    assert below["unknown_model"].split("\n")[1].strip() == "404, 422"


def test_every_event_is_described_and_none_that_there_is_not(site: Site) -> None:
    lua = "\n".join(path.read_text() for path in (ROOT / "storage" / "redis" / "lua").glob("*.lua"))
    ends = {f"job.{state}" for state in ("succeeded", "failed", "canceled", "expired")}
    deliveries = {f"delivery.{state}" for state in ("pending", "delivered", "failed")}
    emitted = set(re.findall(r"'((?:job|delivery)\.[a-z_]+)'", lua)) | ends | deliveries
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    stream, hooks = (re.findall(r"^\| `([a-z_.]+)` \|", part, re.M) for part in page.split("## Events of webhooks"))
    others = {"webhook.test", "batch.completed", "batch.canceled", "batch.expired", "subscription.changed"}
    assert set(hooks) == {*get_args(WebhookEvent), *others}
    assert set(stream) == (emitted - {"job.queued"}) | {"snapshot"}
    for name in {*stream, *hooks}:
        assert name in site.page("reference/events.html").text


def test_every_operation_is_described(site: Site) -> None:
    below = site.page("reference/http-api.html").below
    for path, operations in json.loads(openapi.text())["paths"].items():
        for verb, operation in operations.items():
            told = below[operation["operationId"]]
            assert told.lstrip().startswith(f"{verb.upper()} {path}")
            assert operation["description"].split("\n")[0].replace("`", "") in told


def test_every_route_of_a_facade_is_described(site: Site) -> None:
    page, routes = site.page("reference/http-api.html").text, list(facade_routes())
    assert len(routes) > 15
    for route in routes:
        assert route.path.replace(":path}", "}") in page


def test_every_command_is_described(site: Site) -> None:
    below = site.page("reference/command-line.html").below
    names = list(_commands("penstock", typer.main.get_command(app)))
    assert len(names) > 40
    for name in names:
        assert "Usage" in below[name.replace(" ", "-")]
    assert "--idempotency-key" in below["penstock-submit"]


def _commands(name: str, command: object) -> Iterator[str]:
    for child, inside in getattr(command, "commands", {}).items():
        if not inside.hidden:
            yield f"{name} {child}"
            yield from _commands(f"{name} {child}", inside)


def test_every_method_of_the_client_and_every_answer_is_described(site: Site) -> None:
    below = site.page("reference/python.html").below
    methods = [name for name in dir(client.Client) if not name.startswith("_")]
    assert len(methods) > 30
    for name in methods:
        assert len(below[f"penstock.client.Client.{name}"].split()) > 3
    known = {anchor.rpartition(".")[2] for anchor in below}
    assert set(client.__all__) <= known


def test_the_contract_of_processors_is_described(site: Site) -> None:
    below = site.page("reference/io-processors.html").below
    for name in ("IOProcessor.pre_process", "IOProcessor.post_process", "IOProcessor.dummy", "ArtifactSink.checkpoint"):
        assert len(below[f"penstock.processors.base.{name}"].split()) > 10
    assert "count" in below["penstock.processors.base.Prepared.count"]
    assert "penstock.processors.testing.check_processor" in below


def test_the_figure_of_states_shows_every_state_and_event(site: Site) -> None:
    figure = (site.folder / "explanation" / "states.svg").read_text()
    words = {word for text in re.findall(r">([^<>]+)</text>", figure) for word in text.split(", ")}
    assert words == {*State} - {State.OTHER} | {event.value.replace("_", " ") for _, event in TRANSITIONS}


def test_the_figures_of_tiling_are_of_real_plans(site: Site) -> None:
    halo, hann = ((site.folder / "explanation" / f"{name}.svg").read_text() for name in ("halo", "hann"))
    assert halo.count("<rect") == 1 + 2 + 4 * 6 + 2 + 4  # ground, scene, strip, cores, the chosen tile, legend
    assert hann.count(">window ") == 4


def test_no_page_links_to_what_is_not_there_or_loads_from_elsewhere(site: Site) -> None:
    assert len(site.pages) > 40
    dead = [f"{name}: {link}" for name in site.pages for link in _dead_links(site, name)]
    assert dead == []


def _dead_links(site: Site, name: str) -> Iterator[str]:
    page = site.page(name)
    yield from (link for link in page.loads if urlsplit(link).scheme or link.startswith("//"))
    for link in [*page.links, *page.loads]:
        parts = urlsplit(link)
        inside = not parts.scheme and name != "404.html"  # that page may be answered anywhere
        if inside and not _leads_somewhere(site, name, unquote(parts.path), parts.fragment):
            yield link


def _leads_somewhere(site: Site, name: str, path: str, fragment: str) -> bool:
    file = ((site.folder / name).parent / path).resolve() if path else site.folder / name
    if not file.is_file():
        return False
    if not fragment or file.suffix != ".html":
        return True
    return unquote(fragment) in site.page(str(file.relative_to(site.folder.resolve()))).below


def test_every_file_that_a_page_of_the_repository_links_to_is_there() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    for page in tracked.stdout.split():
        prose = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)\s#]+)", prose):
            if not urlsplit(link).scheme and not link.endswith(".svg"):
                assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


def test_the_search_knows_the_pages(site: Site) -> None:
    index = json.loads((site.folder / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert set(site.pages) - {"404.html"} <= found


def test_the_page_of_supported_models_begins_with_a_search(site: Site) -> None:
    html = (site.folder / "reference" / "what-runs.html").read_text()
    assert 0 < html.index('class="table-filter"') < html.index("<table>")
    assert any(link.endswith("filter.js") for link in site.page("reference/what-runs.html").loads)


def test_decisions_are_no_pages_of_the_site(site: Site) -> None:
    assert not (site.folder / "decisions").exists()


def test_dead_links_dead_anchors_and_pages_outside_of_the_navigation_fail_the_build(tmp_path: Path) -> None:
    told = _build_of(tmp_path, {"index.md": "[nothing](none.md) [no place](index.md#none)", "lost.md": "# Lost"})
    assert "docs/index.md links to none.md, which does not exist" in told
    assert "contains a link 'index.md#none', but there is no such anchor" in told
    assert "- lost.md" in told


def test_a_place_that_nothing_fills_stops_the_build(tmp_path: Path) -> None:
    assert "there is no generated part 'weather'" in _build_of(tmp_path, {"index.md": "<!-- made: weather -->"})


def _build_of(folder: Path, pages: Mapping[str, str]) -> str:
    """Return what a build of other pages under our configuration, which must fail, says."""
    (folder / "docs").mkdir()
    for name, text in pages.items():
        (folder / "docs" / name).write_text(text)
    hook = ROOT / "docs" / "generator" / "hook.py"
    empty = "plugins: []\nextra_css: []\nextra_javascript: []\n"
    config = f"INHERIT: {ROOT}/mkdocs.yml\nhooks: [{hook}]\n{empty}nav: [index.md]\n"
    (folder / "mkdocs.yml").write_text(config)
    done = build(folder / "mkdocs.yml", folder / "site")
    assert done.returncode == 1
    return done.stderr + done.stdout


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, "whole number, above 0"),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, "time (RFC 3339), or null"),
        ({"type": ["string", "null"]}, "text, or null"),
        ({"type": "array", "items": {"$ref": "#/$defs/Colour"}}, "list of: `red` or `green`"),
        ({"type": "array", "minItems": 1}, "list, at least 1 of them"),
        ({"type": "object", "additionalProperties": {"$ref": "#/$defs/Thing"}}, "object of: <Thing>"),
        ({"type": "object", "properties": {"a": {}, "b": {}}}, "object with `a`, `b`"),
        ({"const": "job"}, "`job`"),
        ({"type": "number", "minimum": 1.0, "maximum": 0.5}, "number, at least 1, at most 0.5"),
        ({}, "anything"),
    ],
)  # fmt: skip
def test_a_schema_is_told_in_words(schema: Mapping[str, Any], told: str) -> None:
    definitions = {"Colour": {"enum": ["red", "green"]}, "Thing": {"type": "object"}}
    assert words(schema, lambda name: f"<{name}>", definitions) == told


class TestLinks:
    def to(self, markdown: str, page: str = "howto/keys.md") -> tuple[str, list[str]]:
        complaints: list[str] = []
        return relinked(markdown, page, ROOT, complaints.append), complaints

    def test_a_page_at_the_top_of_the_repository_is_a_page_of_the_site(self) -> None:
        assert self.to("[it](../../README.md#the-promise)") == ("[it](../project/readme.md#the-promise)", [])
        assert self.to("[a](docs/howto/keys.md)", "project/readme.md") == ("[a](../howto/keys.md)", [])

    def test_what_is_no_page_is_named(self) -> None:
        assert self.to("[examples/plugin](../../examples/plugin)") == ("`examples/plugin`", [])
        assert self.to("[one](../../src/penstock/intake/guard.py)") == ("one (`src/penstock/intake/guard.py`)", [])

    def test_links_elsewhere_and_code_stay_as_they_are(self) -> None:
        text = "[a](https://a.example/x) [b](#here)\n\n```\n[c](none.md)\n```\n"
        assert self.to(text) == (text, [])

    def test_a_link_to_nothing_is_told(self) -> None:
        text, complaints = self.to("[gone](gone.md)")
        assert (text, len(complaints)) == ("gone", 1)


def test_pages_are_read_as_browsers_do() -> None:
    page = Page('<h2 id="a">A<a href="#b">x</a></h2>text<script src="https://x/y.js"></script><p id="b">')
    assert (page.below, page.links, page.loads) == ({"a": "Axtext", "b": ""}, ["#b"], ["https://x/y.js"])
