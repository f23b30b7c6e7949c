"""`penstock deliveries`: list webhook deliveries, and send them again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.display import clock, out, print_json, show_all, show_one, table
from penstock.cli.options import DEFAULT_URL, EPILOG, FOLLOWING_S, REQUEST_S, AsJson, JobId, Url, connect
from penstock.client.answers import WebhookDelivery

deliveries_app = typer.Typer(
    help="Webhook deliveries: list those of a job, list those that failed for good, and send them again.",
    epilog=EPILOG,
    no_args_is_help=True,
)


@deliveries_app.command("list")
def list_deliveries(job_id: JobId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the deliveries of a job's events. Each try is in `penstock trace JOB`."""
    with connect(url) as client:
        show_all(client.deliveries(job_id), as_json, show_deliveries)


@deliveries_app.command()
def redeliver(
    job_id: JobId,
    delivery_id: Annotated[str, typer.Argument(metavar="DELIVERY", help="Id of the delivery.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send an event again, or before it is due, at once, with the same id and the same bytes."""
    with connect(url) as client:
        show_one(client.redeliver(job_id, delivery_id), as_json, show_deliveries)


@deliveries_app.command("dead-letters")
def dead_letters(
    endpoint_id: Annotated[str | None, typer.Option("--endpoint", help="Only deliveries to this endpoint.")] = None,
    again: Annotated[bool, typer.Option("--redeliver", help="Send all of them again.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Number of deliveries to list.")] = 50,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the deliveries that failed for good, or send them again."""
    with connect(url, patience_s=FOLLOWING_S if again else REQUEST_S) as client:
        if again:
            sent = client.redeliver_dead(endpoint_id=endpoint_id)
            print_json({"deliveries": sent}) if as_json else out.print(f"{sent} deliveries are sent again")
        else:
            show_all(client.dead_deliveries(endpoint_id=endpoint_id, limit=limit), as_json, show_deliveries)


def show_deliveries(deliveries: Sequence[WebhookDelivery]) -> None:
    """Print deliveries as a table."""
    rows = table("delivery", "event", "state", "tries", "last try", "next try", "receiver")
    for delivery in deliveries:
        last = delivery.log[-1] if delivery.log else None
        said = "" if last is None else f"{clock(last.at)} {last.note}"
        following = clock(delivery.next_attempt_at)
        rows.add_row(delivery.id, delivery.event, delivery.state, str(len(delivery.log)), said, following, delivery.url)
    out.print(rows)
