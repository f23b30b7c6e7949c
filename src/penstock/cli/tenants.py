"""`penstock tenants`: export and erase all that a service keeps of a tenant, with its settings and its data folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.display import err, out, print_json
from penstock.cli.keys import tenant_name
from penstock.cli.options import EPILOG, JOB_FAILED, AsJson, Data, confirm
from penstock.cli.upkeep import opened_stores

tenants_app = typer.Typer(
    help="Tenants: export all that is kept of one, or erase it.", epilog=EPILOG, no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.", callback=tenant_name)]

#: Places that an erasure does not reach.
_BEYOND = (
    "not erased, because it lies elsewhere: log lines of processes, sums of all tenants in metrics, results of drop "
    "rules in their buckets, delivered webhooks, backups"
)


@tenants_app.command()
def export(
    name: Name,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="PATH", help="New folder, or new file .tar or .tar.gz [NAME-export]."),
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Export all that is kept of a tenant: objects, records, usage, keys; with a manifest of SHA-256 digests.

    The export has the secrets that sign the tenant's webhooks, and no texts of API keys: those are stored nowhere.
    """
    from penstock.workers.keeper.tenant_export import export_tenant

    target = to or Path(f"{name}-export")
    with opened_stores(data) as (_, store, objects):
        done = export_tenant(store, objects, name, target)
    if as_json:
        print_json({"tenant": name, "path": str(target), **asdict(done)})
        return
    if not (done.objects or done.redis_keys or done.api_keys):
        err.print(f"nothing is kept of a tenant {name}: `penstock keys list` shows the tenants with keys")
    out.print(str(target))
    err.print(
        f"{done.objects} objects, {done.redis_keys} keys of Redis, {done.api_keys} API keys; {done.size_bytes} bytes"
    )


@tenants_app.command()
def erase(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Erase all that is kept of a tenant, sums of usage included, and check that nothing is left. Exit code 1 if it is.

    Live jobs are canceled first, and the tenant's API keys revoked. Nothing brings it back: export it before.
    """
    from penstock.workers.keeper.tenant_erasure import erase_tenant

    if not yes:
        confirm(f"Erase all jobs, results, uploads, batches, endpoints, usage and keys of tenant {name}?")
    with opened_stores(data) as (settings, store, objects):
        done = erase_tenant(store, objects, settings, name, tell=err.print)
    if as_json:
        print_json({**asdict(done), "beyond": _BEYOND})
    else:
        out.print(
            f"{name}: {done.jobs} jobs ({done.canceled_jobs} canceled), {done.batches} batches, {done.objects} further "
            f"objects, {done.api_keys} API keys and {done.redis_keys} keys and entries of Redis are erased"
        )
        out.print("nothing in Redis and the object store names the tenant" if not done.left else "left:")
        for line in done.left:
            out.print(f"  {line}")
        err.print(_BEYOND)
    if done.left:
        raise typer.Exit(JOB_FAILED)
