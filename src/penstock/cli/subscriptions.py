"""`penstock subscriptions`: have each new item of a STAC catalogue become a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.display import err, fitted, moment, out, show_all, show_deleted, show_one, show_rows
from penstock.cli.options import DEFAULT_URL, EPILOG, JOB_FAILED, OK, AsJson, Params, Url, Whole, begin_of, connect
from penstock.jobs import Priority

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.client.subscription_answers import Subscription

subscriptions_app = typer.Typer(
    help="Subscriptions, which make a job of each new item of a STAC catalogue: create, list, show, pause, resume and "
    "delete them.",
    epilog=EPILOG,
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the subscription.")]
_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def _seconds(text: str) -> float:
    """Return a duration such as `15m`, `2h`, `10d` or `90` in seconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not isfinite(float(found[1])):
        raise typer.BadParameter(f"{text[:100]}: write a duration such as 90s, 15m, 2h or 10d")
    return float(found[1]) * _UNITS_S[found[2]]


@subscriptions_app.command()
def create(
    name: Name,
    stac: Annotated[str, typer.Option("--stac", metavar="URL", help="Address of the STAC API.")],
    collections: Annotated[
        list[str], typer.Option("--collection", metavar="ID", help="A collection; may be repeated.")
    ],
    model: Annotated[str, typer.Option(help="Model of the jobs: see `penstock models`.")],
    area: Annotated[str | None, typer.Option(metavar="FILE", help="GeoJSON; other items are skipped.")] = None,
    wanted: Annotated[
        str | None, typer.Option("--filter", metavar="CQL2", help='Condition on items: "eo:cloud_cover < 20".')
    ] = None,
    every_s: Annotated[
        float, typer.Option("--every", metavar="TIME", parser=_seconds, help="Time between two looks [15m].")
    ] = "15m",  # type: ignore[assignment]  # typer parses defaults
    look_back_s: Annotated[
        float,
        typer.Option(
            "--look-back", metavar="TIME", parser=_seconds, help="Time for which late and corrected items count [10d]."
        ),
    ] = "10d",  # type: ignore[assignment]
    since: Annotated[
        datetime | None,
        typer.Option("--from", metavar="DATE", parser=begin_of, help="Begin with items of this date [now]."),
    ] = None,
    max_jobs_a_day: Annotated[int | None, typer.Option(min=1, metavar="N", help="Jobs in a UTC day, at most.")] = None,
    param: Params = None,
    whole: Whole = None,
    priority: Annotated[Priority | None, typer.Option(help="Priority of the jobs [normal].")] = None,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="Address to notify of each result.")] = None,
    condition: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help='Notify only if it holds: "gained(water) > 2 km2 ignoring cloud".'),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a subscription. The same command again changes nothing; another one for the same name is refused."""
    from penstock.cli.params import parse_params
    from penstock.cli.run import read_document

    with connect(url) as client:
        schema = client.model(model).input_schema if param else {}
        made = client.create_subscription(
            name, stac=stac, collections=collections, model=model, filter=wanted,
            area=None if area is None else read_document(area, "--area"),
            input={**read_document(whole), **parse_params(param or [], schema)} or None,
            priority=priority, every_s=every_s, look_back_s=look_back_s, since=since, max_jobs_a_day=max_jobs_a_day,
            webhook=webhook, condition=condition,
        )  # fmt: skip
    show_one(made, as_json, _show)


@subscriptions_app.command("list")
def list_subscriptions(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the subscriptions: their state, last look and jobs."""
    with connect(url) as client:
        show_all(client.subscriptions(), as_json, _show)


@subscriptions_app.command()
def show(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show a subscription, what was decided last and why. Exit code 1 while its looks fail."""
    with connect(url) as client:
        found = client.subscription(name)
    show_one(found, as_json, _show_whole)
    raise typer.Exit(JOB_FAILED if found.state == "failing" else OK)


@subscriptions_app.command()
def pause(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Pause a subscription. Its jobs go on."""
    with connect(url) as client:
        show_one(client.pause_subscription(name), as_json, _show)


@subscriptions_app.command()
def resume(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Resume a subscription. Items that came meanwhile become jobs."""
    with connect(url) as client:
        show_one(client.resume_subscription(name), as_json, _show)


@subscriptions_app.command()
def delete(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete a subscription with its collection of results. Its jobs stay."""
    with connect(url) as client:
        client.delete_subscription(name)
    show_deleted(name, as_json)


def _show(found: Sequence[Subscription]) -> None:
    columns = ("subscription", "state", "model", "jobs", "last look", "seen until", "catalogue")
    rows = [
        (each.name, each.state, each.model, str(each.jobs), _time(each.last_look_at), _time(each.seen_until), each.stac)
        for each in found
    ]
    out.print(fitted(out, columns, rows, omit=("catalogue", "seen until", "model")) if rows else "no subscriptions")
    for each in found:
        if each.reason:
            err.print(f"{each.name}: {each.reason}")


def _show_whole(found: Sequence[Subscription]) -> None:
    _show(found)
    for each in found:
        seen = each.last_look
        out.print(
            f"last look: {seen.found} items: {seen.new} new, {seen.done} done before, {seen.filtered} filtered, "
            f"{seen.outside} outside the area, {seen.waiting} waiting"
        )
        for reason, number in seen.unread.items():
            out.print(f"passed over: {number} {'item' if number == 1 else 'items'} {reason}")
        rows = [
            (_time(note.at), note.decision, note.item, _time(note.time), note.job or "", note.reason)
            for note in each.notes
        ]
        if rows:
            columns = ("decided", "decision", "item", "time of the item", "job", "reason")
            out.print(fitted(out, columns, rows, omit=("time of the item", "job")))
        show_results(out, each)


def show_results(console: Console, found: Subscription) -> None:
    """Print the latest results of a subscription; in a terminal, with their areas below."""
    rows = [
        (
            each.item, _time(each.time), "" if each.changed is None else "yes" if each.changed else "no",
            "; ".join(f"{part.name}: {_quantities(part.m2)}" for part in each.polygons) or each.problem or "", each.url,
        )
        for each in found.results
    ]  # fmt: skip
    if rows:
        console.print(f"results: {found.collection_url}")
        columns = ("result of", "time of the item", "changed", "areas", "STAC item")
        show_rows(console, columns, rows, omit=("STAC item", "changed"), below="areas")


def _quantities(m2: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {area / 1e6:.3g} km2" for name, area in m2.items())


def _time(at: datetime | None) -> str:
    return "" if at is None else moment(at)
