"""`penstock webhooks`: the endpoints that are told of all jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.deliveries_command import show_deliveries
from penstock.display import clock, err, out, print_json, table
from penstock.options import DEFAULT_URL, EPILOG, JOB_FAILED, OK, AsJson, Url, asking

if TYPE_CHECKING:
    from penstock.answers import WebhookEndpoint

webhooks_app = typer.Typer(
    help="Webhook endpoints, which are told of all jobs: create, list, test, change, rotate and delete them.",
    epilog=EPILOG,
    no_args_is_help=True,
)

EndpointId = Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint's id: see `penstock webhooks list`.")]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="EVENT",
        help="An event that it is told of; may be repeated [job.succeeded, job.failed, job.canceled, job.expired].",
    ),
]
Models = Annotated[list[str] | None, typer.Option("--model", help="Only jobs of this model; may be repeated.")]
Description = Annotated[str | None, typer.Option(help="For people.")]


@webhooks_app.command()
def create(
    receiver: Annotated[str, typer.Argument(metavar="RECEIVER", help="The URL that events are sent to.")],
    events: Events = None,
    models: Models = None,
    description: Description = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make an endpoint and show its secret, which is not shown again."""
    with asking(url) as client:
        made = client.create_webhook_endpoint(receiver, events=events, models=models, description=description)
    _show_secret(made, as_json)


@webhooks_app.command("list")
def list_endpoints(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the endpoints."""
    with asking(url) as client:
        found = client.webhook_endpoints()
    if as_json:
        print_json([dict(endpoint.raw) for endpoint in found])
    else:
        _show(found)


@webhooks_app.command()
def change(
    endpoint_id: EndpointId,
    receiver: Annotated[str | None, typer.Option("--receiver", metavar="URL", help="Another URL.")] = None,
    events: Events = None,
    models: Models = None,
    description: Description = None,
    enable: Annotated[bool, typer.Option("--enable", help="Tell it of jobs again.")] = False,
    disable: Annotated[bool, typer.Option("--disable", help="Disabled, it is told of nothing.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change an endpoint: what is not given stays as it is."""
    if enable and disable:
        raise typer.BadParameter("--enable and --disable: one of them is meant")
    if not (enable or disable) and all(wish is None for wish in (receiver, events, models, description)):
        raise typer.BadParameter(
            "nothing is to be changed: give --receiver, --event, --model, --description, --enable or --disable"
        )
    with asking(url) as client:
        changed = client.change_webhook_endpoint(
            endpoint_id,
            url=receiver,
            events=events,
            models=models,
            description=description,
            enabled=enable if enable or disable else None,
        )
    if as_json:
        print_json(dict(changed.raw))
    else:
        _show([changed])


@webhooks_app.command()
def delete(endpoint_id: EndpointId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete an endpoint. What waits to be sent to it is not sent any more."""
    with asking(url) as client:
        client.delete_webhook_endpoint(endpoint_id)
    if as_json:
        print_json({"id": endpoint_id, "deleted": True})
    else:
        out.print(f"{endpoint_id}  deleted")


@webhooks_app.command("test")
def send_test(endpoint_id: EndpointId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send an endpoint a webhook.test event and show what it answered. Exit code 1 unless that was 2xx."""
    with asking(url) as client:
        delivery = client.test_webhook_endpoint(endpoint_id)
    if as_json:
        print_json(dict(delivery.raw))
    else:
        show_deliveries([delivery])
    raise typer.Exit(OK if delivery.state == "delivered" else JOB_FAILED)


@webhooks_app.command()
def rotate(
    endpoint_id: EndpointId,
    overlap_s: Annotated[
        int | None,
        typer.Option(
            "--overlap", min=0, help="For how many seconds the secret before signs beside the new one [86400]."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new secret and show it. Until the overlap ends, receivers may know either."""
    with asking(url) as client:
        _show_secret(client.rotate_webhook_secret(endpoint_id, overlap_s=overlap_s), as_json)


@webhooks_app.command()
def deliveries(
    endpoint_id: EndpointId,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List what was sent to an endpoint, the latest first."""
    with asking(url) as client:
        found = client.endpoint_deliveries(endpoint_id, limit=limit).deliveries
    if as_json:
        print_json([dict(delivery.raw) for delivery in found])
    else:
        show_deliveries(found)


def _show_secret(endpoint: WebhookEndpoint, as_json: bool) -> None:
    if as_json:
        print_json(dict(endpoint.raw))
        return
    out.print(f"{endpoint.id}  {endpoint.url}\n{endpoint.secret}")
    err.print("Keep the secret where the receiver finds it: it is not shown again.")


def _show(found: Sequence[WebhookEndpoint]) -> None:
    rows = table("endpoint", "state", "events", "models", "made", "receiver", "description")
    for endpoint in found:
        state = "enabled" if endpoint.enabled else f"disabled {endpoint.disabled_reason or ''}".strip()
        lists = (" ".join(endpoint.events), " ".join(endpoint.models) or "all")
        rows.add_row(endpoint.id, state, *lists, clock(endpoint.created_at), endpoint.url, endpoint.description)
    out.print(rows)
