"""Whether drop rules can work: buckets, queues and models are there, and they do not get into each other's way."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import islice

from penstock.config import DropRule, Settings
from penstock.drop_rules import conflicts, watched_folder
from penstock.errors import InvalidRequest, PenstockError
from penstock.models import CatalogueEntry, find, known_names
from penstock.storage.catalogues import CHECKING, FETCHING
from penstock.storage.checks import Finding
from penstock.storage.drop_events import Pass
from penstock.storage.objects import open_store
from penstock.storage.sqs import open_queue
from penstock.storage.submissions import check_input


def inspect_drops(
    settings: Settings, models: Mapping[str, CatalogueEntry], listed: Mapping[str, Pass] | None = None
) -> Iterator[Finding]:
    """Yield what was found of each rule, each queue, and of rules that take something from each other.

    `models` are those that workers told of; without any, nothing is said of the rules' models. `listed` is what the
    keeper's last listings found.
    """
    for rule in settings.drops:
        found = [_bucket(rule, settings), *_open_ends(rule), *(_model(rule, models) if models else ())]
        yield from found
        yield from _last_listing(rule, (listed or {}).get(rule.name), {finding.detail for finding in found})
    for url in dict.fromkeys(rule.queue_url for rule in settings.drops if rule.queue_url):
        yield _queue(url, settings)
    for name, detail in conflicts(settings.drops):
        remedy = "give the rules prefixes apart from each other, and an output_prefix where none looks"
        yield Finding(f"drop rule {name}", ok=False, detail=detail, remedy=remedy)


def _bucket(rule: DropRule, settings: Settings) -> Finding:
    name, where = f"drop rule {rule.name}", f"{rule.bucket.rstrip('/')}/{rule.prefix}"
    folder = watched_folder(rule)
    if folder is not None and not folder.is_dir():
        remedy = "make it, or correct `bucket` and `prefix`"
        return Finding(name, ok=False, detail=f"there is no folder {folder}", remedy=remedy)
    try:
        bucket = open_store(rule.bucket, settings)
        bucket.ping()
        empty = not list(islice(bucket.list(rule.prefix), 1))
    except PenstockError as error:
        remedy = "correct `bucket`, `s3` or the rights of its key: it must list, read, write and delete there"
        return Finding(name, ok=False, detail=f"{rule.bucket}: {error.detail}", remedy=remedy)
    heard = {None: "listed", "webhook": "told of by POST /v1/events/s3"}.get(rule.events, "told of by SQS")
    return Finding(name, ok=True, detail=f"{where}, {heard}{', nothing there' if empty else ''}")


def _open_ends(rule: DropRule) -> Iterator[Finding]:
    """Yield a warning for each prefix that is no folder's: buckets allow it, and it is seldom meant."""
    name = f"drop rule {rule.name}"
    if rule.prefix and not rule.prefix.endswith("/"):
        detail = f"prefix {rule.prefix!r} takes names like {rule.prefix + '2/a.tif'!r} too"
        yield Finding(name, ok=True, detail=detail, remedy=f"write {rule.prefix + '/'!r} for a folder", doubtful=True)
    if rule.output_prefix and not rule.output_prefix.endswith("/"):
        detail = f"results go to names that begin with {rule.output_prefix!r}, not into a folder"
        remedy = f"write {rule.output_prefix + '/'!r} for a folder"
        yield Finding(name, ok=True, detail=detail, remedy=remedy, doubtful=True)


def _model(rule: DropRule, models: Mapping[str, CatalogueEntry]) -> Iterator[Finding]:
    name, entry = f"drop rule {rule.name}", find(models, rule.model)
    if entry is None:
        detail = f"there is no model {rule.model!r}; known models: {known_names(models)}"
        yield Finding(name, ok=False, detail=detail, remedy="correct `model`, or start a worker that has it")
        return
    if entry.problem not in (None, CHECKING, FETCHING):
        detail = f"its model {entry.name} cannot be used: {entry.problem}"
        yield Finding(name, ok=False, detail=detail, remedy="mend the model and restart its worker")
        return
    refusal = _refusal(rule, entry)
    if refusal:
        remedy = "correct `input` and `field`: the jobs would fail"
        yield Finding(name, ok=False, detail=f"{entry.name} refuses the rule's input: {refusal}", remedy=remedy)


def _last_listing(rule: DropRule, last: Pass | None, said: Container[str]) -> Iterator[Finding]:
    """Yield what keeps the rule, or some of its objects, from results, unless it was `said` already."""
    if last is not None and last.problem is not None and last.problem not in said:
        remedy = "`penstock drops` shows whether the next listing finds it mended"
        yield Finding(f"drop rule {rule.name}", ok=False, detail=f"its last listing: {last.problem}", remedy=remedy)


def _refusal(rule: DropRule, entry: CatalogueEntry) -> str:
    """Return what the model's schema refuses of a rule's input; what is missing may stand in sidecars."""
    try:
        check_input(entry, {**rule.input, rule.field: "media://drop/scene"})
    except InvalidRequest as error:
        return "; ".join(f"{i.pointer}: {i.detail}" for i in error.errors if i.detail != "is required")
    return ""


def _queue(url: str, settings: Settings) -> Finding:
    try:
        waiting = open_queue(url, settings).ping()
    except PenstockError as error:
        remedy = "correct `events`, or let the key in `s3` do sqs:ReceiveMessage, DeleteMessage and GetQueueAttributes"
        return Finding("drop queue", ok=False, detail=f"{url}: {error.detail}", remedy=remedy)
    return Finding("drop queue", ok=True, detail=f"{url}, about {waiting} messages wait")
