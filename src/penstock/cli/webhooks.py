"""`penstock webhooks`: the endpoints that receive events of all jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from penstock.cli.deliveries import show_deliveries
from penstock.cli.display import clock, err, out, print_json, show_all, show_deleted, show_one, table
from penstock.cli.options import DEFAULT_URL, EPILOG, JOB_FAILED, OK, AsJson, Url, connect
from penstock.client.answers import WebhookEndpoint

webhooks_app = typer.Typer(
    help="Webhook endpoints, which receive events of all jobs: create, list, test, change, rotate and delete them.",
    epilog=EPILOG,
    no_args_is_help=True,
)

EndpointId = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Id of an endpoint: see `penstock webhooks list`.")]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="EVENT",
        help="An event to send; may be repeated [job.succeeded, job.failed, job.canceled, job.expired].",
    ),
]
Models = Annotated[list[str] | None, typer.Option("--model", help="Only jobs of this model; may be repeated.")]
Description = Annotated[str | None, typer.Option(help="A note for people.")]
_FORMAT = "Form of the bodies: webhook or cloudevents [webhook]."


@webhooks_app.command()
def create(
    receiver: Annotated[
        str, typer.Argument(metavar="RECEIVER", help="URL that events are sent to, or the ARN of a topic or queue.")
    ],
    events: Events = None,
    models: Models = None,
    description: Description = None,
    form: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help=_FORMAT)] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create an endpoint and show its secret, which is not shown again."""
    with connect(url) as client:
        made = client.create_webhook_endpoint(
            receiver, events=events, models=models, description=description, format=form
        )
    _show_secret(made, as_json)


@webhooks_app.command("list")
def list_endpoints(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the endpoints."""
    with connect(url) as client:
        show_all(client.webhook_endpoints(), as_json, _show)


@webhooks_app.command()
def change(
    endpoint_id: EndpointId,
    receiver: Annotated[str | None, typer.Option("--receiver", metavar="URL", help="New URL.")] = None,
    events: Events = None,
    models: Models = None,
    description: Description = None,
    form: Annotated[str | None, typer.Option("--format", metavar="FORMAT", help=_FORMAT)] = None,
    enable: Annotated[bool, typer.Option("--enable", help="Send events again.")] = False,
    disable: Annotated[bool, typer.Option("--disable", help="Send no events.")] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change an endpoint; omitted fields stay unchanged."""
    if enable and disable:
        raise typer.BadParameter("--enable and --disable exclude each other: give one of them")
    if not (enable or disable) and all(wish is None for wish in (receiver, events, models, description, form)):
        raise typer.BadParameter(
            "nothing to change: give --receiver, --event, --model, --description, --format, --enable or --disable"
        )
    with connect(url) as client:
        changed = client.change_webhook_endpoint(
            endpoint_id, url=receiver, events=events, models=models, description=description, format=form,
            enabled=enable if enable or disable else None,
        )  # fmt: skip
    show_one(changed, as_json, _show)


@webhooks_app.command()
def delete(endpoint_id: EndpointId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Delete an endpoint. Its pending deliveries are not sent any more."""
    with connect(url) as client:
        client.delete_webhook_endpoint(endpoint_id)
    show_deleted(endpoint_id, as_json)


@webhooks_app.command("test")
def send_test(endpoint_id: EndpointId, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send a webhook.test event to an endpoint and show the response. Exit code 1 unless it is 2xx."""
    with connect(url) as client:
        delivery = client.test_webhook_endpoint(endpoint_id)
    show_one(delivery, as_json, show_deliveries)
    raise typer.Exit(OK if delivery.state == "delivered" else JOB_FAILED)


@webhooks_app.command()
def rotate(
    endpoint_id: EndpointId,
    overlap_s: Annotated[
        int | None,
        typer.Option("--overlap", min=0, help="Seconds that the old secret signs besides the new one [86400]."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give an endpoint a new secret and show it. Until the overlap ends, receivers may use either secret."""
    with connect(url) as client:
        _show_secret(client.rotate_webhook_secret(endpoint_id, overlap_s=overlap_s), as_json)


@webhooks_app.command()
def deliveries(
    endpoint_id: EndpointId,
    limit: Annotated[int, typer.Option(min=1, max=200, help="Number of deliveries.")] = 20,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the deliveries to an endpoint, newest first."""
    with connect(url) as client:
        show_all(client.endpoint_deliveries(endpoint_id, limit=limit).deliveries, as_json, show_deliveries)


def _show_secret(endpoint: WebhookEndpoint, as_json: bool) -> None:
    if as_json:
        print_json(dict(endpoint.raw))
        return
    out.print(f"{endpoint.id}  {endpoint.url}\n{endpoint.secret}")
    err.print("Store the secret with the receiver: it is not shown again.")


def _show(found: Sequence[WebhookEndpoint]) -> None:
    rows = table("endpoint", "state", "events", "models", "created", "receiver", "description")
    for endpoint in found:
        state = "enabled" if endpoint.enabled else f"disabled {endpoint.disabled_reason or ''}".strip()
        lists = (" ".join(endpoint.events), " ".join(endpoint.models) or "all")
        rows.add_row(endpoint.id, state, *lists, clock(endpoint.created_at), endpoint.url, endpoint.description)
    out.print(rows)
