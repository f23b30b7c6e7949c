"""`penstock drops`: list the drop rules and the results of their last listings; run failed objects again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, table
from penstock.cli.options import DEFAULT_URL, EPILOG, JOB_FAILED, AsJson, Data, Url, connect
from penstock.cli.upkeep import load
from penstock.client.answers import ClientError
from penstock.errors import ConfigError, ObjectNotFound, PenstockError

if TYPE_CHECKING:
    from penstock.config import Settings
    from penstock.storage.redis.drop_events import Passes

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
    settings = load(data)
    told = None if settings.drops or data is not None else _told(url)
    if told is None or not told["rules"]:
        told = _here(settings)
    if as_json:
        print_json({"elsewhere": [], **told})
    elif told["rules"]:
        _show(told)
    else:
        _show_no_rules(told["elsewhere"])
    if any(rule["problem"] for rule in told["rules"]):
        raise typer.Exit(JOB_FAILED)


def _told(url: str) -> Mapping[str, Any] | None:
    """Return the drop rules of the service; print the reason and return None where the service does not answer."""
    try:
        with connect(url, patience_s=0) as client:
            return client.drops()
    except ClientError as error:
        err.print(f"the service did not tell its rules: {error}")
        return None


def _here(settings: Settings) -> dict[str, Any]:
    """Return the drop rules of the settings as the API does, and the names of rules that only the service lists."""
    from penstock.api.routes.drops import drop_list

    found, names = _passes(settings), {rule.name for rule in settings.drops}
    elsewhere = sorted(name for name, last in found.rules.items() if last.age_s <= LATE_S and name not in names)
    return {**drop_list(settings, found).model_dump(mode="json"), "elsewhere": elsewhere}


def _passes(settings: Settings) -> Passes:
    """Return the last listings of the service of the settings; none without rules and such a service."""
    from penstock.storage.redis.drop_events import NO_PASSES, passes
    from penstock.storage.redis.records import JobStore
    from penstock.up.valkey import redis_address

    try:
        with closing(JobStore.open(redis_address(settings))) as store:
            return store.run(passes())
    except PenstockError:
        if settings.drops:
            raise
        return NO_PASSES


def _show_no_rules(elsewhere: Sequence[str]) -> None:
    out.print("no drop rules are set here: add [[drops]] to penstock.toml")
    if elsewhere:
        names = ", ".join(elsewhere)
        out.print(f"the service has rules of other settings: {names}. Run this in its folder or with its penstock.toml")


def _show(told: Mapping[str, Any]) -> None:
    rows = table("rule", "where", "model", "events", "objects", "waiting", "failed", "last listing", "problem")
    for rule in told["rules"]:
        last, where = rule["last_pass"] or {}, f"{rule['bucket'].rstrip('/')}/{rule['prefix']}"
        hears = {None: "listing", "webhook": "webhook"}.get(rule["events"], "sqs")
        counts = [str(last.get(name, "")) for name in ("found", "waiting", "failed")]
        when = f"{last['age_s']:.0f} s ago, took {last['took_s']:.1f} s" if last else "none"
        rows.add_row(rule["name"], where, rule["model"], hears, *counts, when, rule["problem"] or "")
    out.print(rows)
    for rule in told["rules"]:
        _show_objects(rule["name"], rule["last_pass"] or {})
    if told["events_waiting"]:
        out.print(f"{told['events_waiting']} events wait for the keeper")


def _show_objects(rule: str, last: Mapping[str, Any]) -> None:
    """Print the names that a rule skips or ignores, its objects without results, and its failures with the reasons."""
    if passed_over := ", ".join(last.get("passed_over", ())):
        out.print(f"{rule} skips names that cannot be objects (copy or rename them): {passed_over}")
    if gone := ", ".join(last.get("gone", ())):
        out.print(f"{rule} has no results for objects that disappeared too early: {gone}")
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
