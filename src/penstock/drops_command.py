"""`penstock drops`: the drop rules, and what their last listing found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from penstock.display import out, print_json, table
from penstock.options import JOB_FAILED, AsJson, Data
from penstock.upkeep import load

if TYPE_CHECKING:
    from penstock.config import DropRule, Settings
    from penstock.storage.drop_events import Pass, Passes

#: After so many listings that did not come, and what a keeper may take until it leads, nobody lists.
_MISSED = 3
_SLACK_S = 30
#: Rules whose last listing is as old may be none any more; with events one comes every five minutes.
LATE_S = 900


def drops(data: Data = None, as_json: AsJson = False) -> None:
    """List the drop rules with their objects: how many, how many wait, how many failed. Exit code 1 on a problem.

    The rules are those of the settings here, the figures those of the keeper's last listing. --json names under
    `elsewhere` rules that the service lists and these settings have not.
    """
    from penstock.drop_rules import listed_every_s
    from penstock.valkey import redis_address

    settings = load(data)
    found = _found(redis_address(settings)) if settings.drops else _found_if_any(settings)
    problems = {rule.name: _problem(rule, found, listed_every_s(rule, settings)) for rule in settings.drops}
    elsewhere = sorted(name for name, last in found.rules.items() if last.age_s <= LATE_S and name not in problems)
    if as_json:
        rules = [_told(rule, found.rules.get(rule.name), problems[rule.name]) for rule in settings.drops]
        print_json({"rules": rules, "events_waiting": found.events_waiting, "elsewhere": elsewhere})
    elif settings.drops:
        _show(settings.drops, found, problems)
    else:
        _say_none(elsewhere)
    if any(problems.values()):
        raise typer.Exit(JOB_FAILED)


def _found(address: str) -> Passes:
    from penstock.storage.drop_events import passes
    from penstock.storage.records import JobStore

    store = JobStore.open(address)
    try:
        return store.run(passes())
    finally:
        store.close()


def _found_if_any(settings: Settings) -> Passes:
    """Return what the settings' service found of late; nothing where there is no such service."""
    from penstock.errors import PenstockError
    from penstock.storage.drop_events import NO_PASSES
    from penstock.valkey import redis_address

    try:
        return _found(redis_address(settings))
    except PenstockError:
        return NO_PASSES


def _say_none(elsewhere: Sequence[str]) -> None:
    out.print("no drop rules are set here: [[drops]] in penstock.toml makes one")
    if elsewhere:
        names = ", ".join(elsewhere)
        out.print(f"the service lists rules of other settings: {names}. Ask in its folder, or with its penstock.toml")


def _told(rule: DropRule, found: Pass | None, problem: str | None) -> dict[str, Any]:
    told = {"name": rule.name, "bucket": rule.bucket, "prefix": rule.prefix, "model": rule.model}
    last = None if found is None else asdict(found)
    return {**told, "tenant": rule.tenant, "events": rule.events, "problem": problem, "last_pass": last}


def _show(rules: tuple[DropRule, ...], found: Passes, problems: Mapping[str, str | None]) -> None:
    rows = table("rule", "where", "model", "hears by", "objects", "waiting", "failed", "last listing", "problem")
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
            out.print(f"{rule.name} passes over what can be no object (copy or rename it): {passed_over}")
        if last and last.gone:
            out.print(f"{rule.name} has no results for what left before its job ended: {', '.join(last.gone)}")
    if found.events_waiting:
        out.print(f"{found.events_waiting} events wait for the keeper")


def _when(last: Pass | None) -> str:
    return "none" if last is None else f"{last.age_s:.0f} s ago, took {last.took_s:.1f} s"


def _problem(rule: DropRule, found: Passes, every_s: float) -> str | None:
    deaf = found.deaf.get(rule.queue_url or "")
    return problem_of(found.rules.get(rule.name), every_s) or (f"its events cannot be heard: {deaf}" if deaf else None)


def problem_of(last: Pass | None, every_s: float) -> str | None:
    """Return what the last listing found wrong, or that there is none of late."""
    if last is None or last.age_s > _MISSED * (every_s + last.took_s) + _SLACK_S:
        return "no keeper lists it: is one running?"
    return last.problem
