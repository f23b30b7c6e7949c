"""`penstock drops`: list the drop rules and the results of their last listings; run failed objects again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, table
from penstock.cli.options import DEFAULT_URL, EPILOG, JOB_FAILED, AsJson, Data, Url, connect
from penstock.cli.upkeep import load
from penstock.client.answers import ClientError
from penstock.errors import ConfigError, ObjectNotFound, PenstockError

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.config_tables import DropRule
    from penstock.storage.redis.drop_events import Pass, Passes

#: Seconds after which a rule unknown here no longer counts as listed; with events a listing takes place every 300 s.
LATE_S = 900


drops_app = typer.Typer(epilog=EPILOG)


@drops_app.command()
def retry(
    rule: Annotated[str, typer.Argument(help="Name of the rule.")],
    keys: Annotated[list[str] | None, typer.Argument(help="Keys of objects; default: all that failed.")] = None,
    data: Data = None,
) -> None:
    """Run the failed objects of a drop rule again, after the rule, the model or a parameters file was corrected.

    The settings here must have the rule. The keeper submits the jobs with its next listing.
    """
    from penstock.storage.drop_rules import ERROR
    from penstock.storage.objects.opening import open_store
    from penstock.workers.keeper.drop_markers import Markers, drop_id, result_key

    settings = load(data)
    found = next((each for each in settings.drops if each.name == rule), None)
    if found is None:
        known = ", ".join(each.name for each in settings.drops) or "none"
        raise ConfigError(f"there is no drop rule {rule!r} in the settings here; known rules: {known}")
    bucket = open_store(found.bucket, settings)
    failed = keys or [
        found.prefix + info.key.removeprefix(found.output_prefix).removesuffix(ERROR)
        for info in bucket.list(found.output_prefix)
        if info.key.endswith(ERROR)
    ]
    markers, again = Markers(bucket), 0
    for key in failed:
        with suppress(ObjectNotFound):  # another rule's object, or one that is gone
            version = drop_id(found.tenant, found.bucket, bucket.head(key))
            again += markers.retry(result_key(found, key), version)
    out.print(f"{again} failed object{'' if again == 1 else 's'} of {rule} will run again with the next listing")


@drops_app.callback(invoke_without_command=True)
def drops(context: typer.Context, data: Data = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the drop rules with their numbers of objects: all, waiting, failed. Exit code 1 on a problem.

    The rules are those of the settings here, or, where these have none, those of the service; the numbers are those of
    the keeper's last listing. With --json, `elsewhere` names rules that the service lists and that are not listed here.
    """
    if context.invoked_subcommand is not None:
        return
    from penstock.storage.drop_rules import listed_every_s
    from penstock.storage.redis.drop_events import problem_with
    from penstock.up.valkey import redis_address

    settings = load(data)
    if not settings.drops and data is None and (told := _told(url)) is not None and told["rules"]:
        _show_told(told, as_json)
        return
    found = _found(redis_address(settings)) if settings.drops else _found_if_any(settings)
    problems = {
        rule.name: problem_with(found, rule.name, rule.queue_url, listed_every_s(rule, settings))
        for rule in settings.drops
    }
    elsewhere = sorted(name for name, last in found.rules.items() if last.age_s <= LATE_S and name not in problems)
    if as_json:
        rules = [_public_fields(rule, found.rules.get(rule.name), problems[rule.name]) for rule in settings.drops]
        print_json({"rules": rules, "events_waiting": found.events_waiting, "elsewhere": elsewhere})
    elif settings.drops:
        _show(settings.drops, found, problems)
    else:
        _show_no_rules(elsewhere)
    if any(problems.values()):
        raise typer.Exit(JOB_FAILED)


def _told(url: str) -> Mapping[str, Any] | None:
    """Return the drop rules of the service; print the reason and return None where the service does not answer."""
    try:
        with connect(url, patience_s=0) as client:
            return client.drops()
    except ClientError as error:
        err.print(f"the service did not tell its rules: {error}")
        return None


def _show_told(told: Mapping[str, Any], as_json: bool) -> None:
    """Show the rules of a service; exit with 1 where one has a problem."""
    if as_json:
        print_json({**told, "elsewhere": []})
    else:
        rows = table("rule", "where", "model", "objects", "waiting", "failed", "problem")
        for rule in told["rules"]:
            last = rule["last_pass"] or {}
            where = f"{rule['bucket'].rstrip('/')}/{rule['prefix']}"
            counts = [str(last.get(name, "")) for name in ("found", "waiting", "failed")]
            rows.add_row(rule["name"], where, rule["model"], *counts, rule["problem"] or "")
        out.print(rows)
        for rule in told["rules"]:
            _show_objects(rule["name"], rule["last_pass"] or {})
    if any(rule["problem"] for rule in told["rules"]):
        raise typer.Exit(JOB_FAILED)


def _found(address: str) -> Passes:
    from penstock.storage.redis.drop_events import passes
    from penstock.storage.redis.records import JobStore

    store = JobStore.open(address)
    try:
        return store.run(passes())
    finally:
        store.close()


def _found_if_any(settings: Settings) -> Passes:
    """Return the last listings of the service of the settings; no listings without such a service."""
    from penstock.storage.redis.drop_events import NO_PASSES
    from penstock.up.valkey import redis_address

    try:
        return _found(redis_address(settings))
    except PenstockError:
        return NO_PASSES


def _show_no_rules(elsewhere: Sequence[str]) -> None:
    out.print("no drop rules are set here: add [[drops]] to penstock.toml")
    if elsewhere:
        names = ", ".join(elsewhere)
        out.print(f"the service has rules of other settings: {names}. Run this in its folder or with its penstock.toml")


def _public_fields(rule: DropRule, found: Pass | None, problem: str | None) -> dict[str, Any]:
    fields = {"name": rule.name, "bucket": rule.bucket, "prefix": rule.prefix, "model": rule.model}
    last = None if found is None else asdict(found)
    return {**fields, "tenant": rule.tenant, "events": rule.events, "problem": problem, "last_pass": last}


def _show(rules: tuple[DropRule, ...], found: Passes, problems: Mapping[str, str | None]) -> None:
    rows = table("rule", "where", "model", "events", "objects", "waiting", "failed", "last listing", "problem")
    for rule in rules:
        where, last = f"{rule.bucket.rstrip('/')}/{rule.prefix}", found.rules.get(rule.name)
        hears = rule.events if rule.queue_url is None else "sqs"
        counts = ("", "", "") if last is None else (str(last.found), str(last.waiting), str(last.failed))
        rows.add_row(
            rule.name, where, rule.model, hears or "listing", *counts, _when(last), problems[rule.name] or ""
        )  # fmt: skip
    out.print(rows)
    for rule in rules:
        last = found.rules.get(rule.name)
        if last and last.passed_over:
            passed_over = ", ".join(last.passed_over)
            out.print(f"{rule.name} skips names that cannot be objects (copy or rename them): {passed_over}")
        if last and last.gone:
            out.print(f"{rule.name} has no results for objects that disappeared too early: {', '.join(last.gone)}")
        if last:
            _show_objects(rule.name, asdict(last))
    if found.events_waiting:
        out.print(f"{found.events_waiting} events wait for the keeper")


def _show_objects(rule: str, last: Mapping[str, Any]) -> None:
    """Print the files that a rule ignores, and its failed objects with their reasons."""
    if count := last.get("ignored", 0):
        names, takes = ", ".join(last["ignored_files"]), " ".join(last["takes"])
        more = ", ..." if count > len(last["ignored_files"]) else ""
        files = "1 file" if count == 1 else f"{count} files"
        product = any(name.lower().endswith("_mtl.json") for name in last["ignored_files"])
        metadata = " or with a product's metadata (*_MTL.json)" if product else ""
        out.print(f"{rule} ignores {files} without one of its `suffixes` ({takes}){metadata}: {names}{more}")
    failures = last.get("failures") or {}
    for key, reason in failures.items():
        out.print(f"{rule} failed on {key}: {reason}")
    if failures:
        out.print(f"After a correction, `penstock drops retry {rule}` runs them again")


def _when(last: Pass | None) -> str:
    return "none" if last is None else f"{last.age_s:.0f} s ago, took {last.took_s:.1f} s"
