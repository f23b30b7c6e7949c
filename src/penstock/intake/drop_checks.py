"""Checks of drop rules: their buckets, queues and models exist, and the rules do not conflict with each other."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from itertools import islice

from penstock.config import Settings
from penstock.config_tables import DropRule
from penstock.errors import ConfigError, InvalidRequest, PenstockError
from penstock.intake.drop_inputs import all_fitted, field_for, field_value
from penstock.intake.submissions import check_input
from penstock.models import CatalogueEntry, find, no_model
from penstock.storage.checks import Finding
from penstock.storage.drop_rules import conflicts, watched_folder
from penstock.storage.objects.opening import open_store
from penstock.storage.redis.catalogues import CHECKING, FETCHING
from penstock.storage.redis.drop_events import Pass
from penstock.storage.sqs import open_queue


def inspect_drops(
    settings: Settings, models: Mapping[str, CatalogueEntry], listed: Mapping[str, Pass] | None = None
) -> Iterator[Finding]:
    """Yield the findings on each rule, on each queue, and on rules that conflict.

    `models` are the models that workers published; without any, the rules' models are not checked. `listed` holds the
    results of the keeper's last listings.
    """
    for rule in settings.drops:
        found = [_bucket(rule, settings), *_open_ends(rule), *(_model(rule, models) if models else ())]
        yield from found
        yield from _last_listing(rule, (listed or {}).get(rule.name), {finding.detail for finding in found})
    for url in dict.fromkeys(rule.queue_url for rule in settings.drops if rule.queue_url):
        yield _queue(url, settings)
    for name, detail in conflicts(all_fitted(settings.drops, models)):
        remedy = "give the rules separate prefixes, and each an output_prefix outside all prefixes"
        yield Finding(f"drop rule {name}", ok=False, detail=detail, remedy=remedy)


def _bucket(rule: DropRule, settings: Settings) -> Finding:
    name, where = f"drop rule {rule.name}", f"{rule.bucket.rstrip('/')}/{rule.prefix}"
    folder = watched_folder(rule)
    if folder is not None and not folder.is_dir():
        remedy = "create it, or correct `bucket` and `prefix`"
        return Finding(name, ok=False, detail=f"there is no folder {folder}", remedy=remedy)
    try:
        bucket = open_store(rule.bucket, settings)
        bucket.ping()
        empty = not list(islice(bucket.list(rule.prefix), 1))
    except PenstockError as error:
        remedy = "correct `bucket`, `s3` or the permissions of its key: it must list, read, write and delete there"
        return Finding(name, ok=False, detail=f"{rule.bucket}: {error.detail}", remedy=remedy)
    heard = {None: "listed", "webhook": "events by POST /v1/events/s3"}.get(rule.events, "events by SQS")
    return Finding(name, ok=True, detail=f"{where}, {heard}{', no objects' if empty else ''}")


def _open_ends(rule: DropRule) -> Iterator[Finding]:
    """Yield a warning for each prefix that is not a folder's: buckets allow it, but it is rarely intended."""
    name = f"drop rule {rule.name}"
    if rule.prefix and not rule.prefix.endswith("/"):
        detail = f"prefix {rule.prefix!r} also matches names like {rule.prefix + '2/a.tif'!r}"
        yield Finding(name, ok=True, detail=detail, remedy=f"write {rule.prefix + '/'!r} for a folder", doubtful=True)
    if rule.output_prefix and not rule.output_prefix.endswith("/"):
        detail = f"results get names that begin with {rule.output_prefix!r}, not in a folder"
        remedy = f"write {rule.output_prefix + '/'!r} for a folder"
        yield Finding(name, ok=True, detail=detail, remedy=remedy, doubtful=True)


def _model(rule: DropRule, models: Mapping[str, CatalogueEntry]) -> Iterator[Finding]:
    name, entry = f"drop rule {rule.name}", find(models, rule.model)
    if entry is None:
        detail = no_model([rule.model], models)
        yield Finding(name, ok=False, detail=detail, remedy="correct `model`, or start a worker that has it")
        return
    if entry.problem not in (None, CHECKING, FETCHING):
        detail = f"its model {entry.name} cannot be used: {entry.problem}"
        yield Finding(name, ok=False, detail=detail, remedy="correct the model and restart its worker")
        return
    try:
        refusal = _refusal(rule, entry)
    except ConfigError as error:
        yield Finding(name, ok=False, detail=error.detail, remedy="correct the rule, or choose another model")
        return
    if refusal:
        remedy = "correct `input`: the jobs would fail"
        yield Finding(name, ok=False, detail=f"{entry.name} rejects the rule's input: {refusal}", remedy=remedy)


def _last_listing(rule: DropRule, last: Pass | None, said: Container[str]) -> Iterator[Finding]:
    """Yield the problem of the rule's last listing, unless it is in `said`."""
    if last is not None and last.problem is not None and last.problem not in said:
        remedy = "run `penstock drops` to see if the next listing succeeds"
        yield Finding(f"drop rule {rule.name}", ok=False, detail=f"its last listing: {last.problem}", remedy=remedy)


def _refusal(rule: DropRule, entry: CatalogueEntry) -> str:
    """Return what the model's schema rejects in a rule's input; missing fields may come from parameter files.

    Raises `ConfigError` if the model does not take the rule's objects.
    """
    schema, given = entry.input_schema, dict(rule.input)
    if not rule.takes_documents:
        field = field_for(rule, schema)
        given[field] = field_value(schema, field, "media://drop/scene")
    try:
        check_input(entry, given)
    except InvalidRequest as error:
        return "; ".join(f"{i.pointer}: {i.detail}" for i in error.errors if i.detail != "is required")
    return ""


def _queue(url: str, settings: Settings) -> Finding:
    try:
        waiting = open_queue(url, settings).ping()
    except PenstockError as error:
        remedy = "correct `events`, or allow the key in `s3` sqs:ReceiveMessage, DeleteMessage and GetQueueAttributes"
        return Finding("drop queue", ok=False, detail=f"{url}: {error.detail}", remedy=remedy)
    return Finding("drop queue", ok=True, detail=f"{url}, about {waiting} messages wait")
