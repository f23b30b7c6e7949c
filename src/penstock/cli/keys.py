"""`penstock keys`: create, list and revoke API keys in the service's object store; print tenants' webhook secrets."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.display import err, out, print_json, table
from penstock.cli.options import EPILOG, AsJson, Data, begin_of
from penstock.cli.upkeep import opened
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.api_keys import KeyRecord, Scope
    from penstock.config import Settings

DEFAULT_SCOPES = "read,submit"
_NAME_CHARS = 100
_UNITS_S = {"m": 60, "h": 3600, "d": 86_400}

keys_app = typer.Typer(
    help="API keys: create, list and revoke them; and the secrets that sign webhooks.", epilog=EPILOG,
    no_args_is_help=True,
)  # fmt: skip


def tenant_name(name: str) -> str:
    """Return the name of a tenant as it was given; raise `BadParameter` for any other text."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", name):
        raise typer.BadParameter("a tenant's name has 1 to 63 characters of a-z, 0-9 and -, and does not begin with -")
    return name


Tenant = Annotated[str, typer.Option(help="Tenant.", callback=tenant_name)]


@keys_app.command()
def create(
    tenant: Tenant = "default",
    name: Annotated[str, typer.Option(help="Purpose of the key: `ci`, `laptop of Ann`.")] = "",
    scopes: Annotated[
        str,
        typer.Option(metavar="LIST", help="Permissions: some of read, submit, webhooks, monitor, events, admin."),
    ] = DEFAULT_SCOPES,
    expires: Annotated[
        str | None, typer.Option(metavar="WHEN", help="Expiry: 90d, 12h, 30m, or a date (2027-01-31) [never].")
    ] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key. Its text is printed once, alone on standard output, and is stored nowhere."""
    from penstock.api_keys import new_key
    from penstock.storage.journal.api_keys import put_key

    now_s = time.time()
    granted, ends_s = _scopes(scopes), None if expires is None else _end(expires, now_s)
    if len(name) > _NAME_CHARS or not name.isprintable():
        raise typer.BadParameter(f"a name has at most {_NAME_CHARS} characters and no line breaks")
    settings, store = opened(data)
    record, text = new_key(
        _secret(settings), tenant=tenant, name=name, scopes=granted, created_s=now_s, expires_s=ends_s
    )
    put_key(store, record)
    if as_json:
        print_json({**_public_fields(record, now_s), "key": text})
        return
    out.print(text)
    until = "" if ends_s is None else f", until {_moment(ends_s)}"
    err.print(f"key {record.id} for tenant {tenant}: {', '.join(record.scopes)}{until}. It is not shown again.")
    if not settings.with_keys:
        err.print("These settings do not require keys: only a service started with `penstock up --keys` does.")
        err.print("With access = 'keys' in penstock.toml every start does.")


@keys_app.command("list")
def list_all(
    tenant: Annotated[str | None, typer.Option(help="Only keys of this tenant.")] = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the keys, newest first, without their texts."""
    from penstock.api_keys import secret_fingerprint
    from penstock.storage.journal.api_keys import list_keys

    settings, store = opened(data)
    found = [record for record in list_keys(store) if tenant in (None, record.tenant)]
    fingerprint, now_s = secret_fingerprint(_secret(settings)), time.time()
    found.sort(key=lambda record: record.created_s, reverse=True)
    rows = [_public_fields(record, now_s, fingerprint) for record in found]
    if as_json:
        print_json(rows)
        return
    shown = table("key", "tenant", "name", "scopes", "state", "created", "expires")
    for row in rows:
        shown.add_row(
            row["id"], row["tenant"], row["name"], ",".join(row["scopes"]), row["state"], row["created_at"],
            row["expires_at"] or "never",
        )  # fmt: skip
    out.print(shown)


@keys_app.command()
def revoke(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="Ids of keys, or their texts.")],
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Revoke keys for ever. Every API rejects them within 5 seconds (60 while its object store does not respond)."""
    from penstock.api_keys import id_in
    from penstock.storage.journal.api_keys import revoke_key

    _, store = opened(data)
    now_s, ended = time.time(), []
    for given in keys:
        key_id = id_in(given)
        record = None if key_id is None else revoke_key(store, key_id, at=now_s)
        if record is None:  # the input may be a secret: it is not printed
            raise ConfigError(f"there is no key {key_id or 'like that'}: see `penstock keys list`")
        ended.append(_public_fields(record, now_s))
        if not as_json:
            out.print(f"{record.id}  revoked")
    if as_json:
        print_json(ended)


@keys_app.command("webhook-secret")
def webhook_secret(tenant: Tenant = "default", data: Data = None) -> None:
    """Print the secret that signs a tenant's webhooks (created at the first call)."""
    from penstock.config_tables import DEFAULT_TENANT
    from penstock.storage.journal.api_keys import list_keys
    from penstock.storage.objects.opening import known_or_new_webhook_secret

    store = opened(data)[1]
    secret, is_new = known_or_new_webhook_secret(store, tenant)
    out.print(secret)
    if is_new:
        err.print(f"the secret is new: tenant {tenant} had none")
    if tenant not in ({record.tenant for record in list_keys(store)} or {DEFAULT_TENANT}):
        err.print(f"tenant {tenant} has no API key: is the name right? See `penstock keys list`")


def _secret(settings: Settings) -> str:
    """Return the service's secret: that of the settings, or the one in the data folder."""
    from penstock.storage.signing import load_or_create_secret

    path = settings.data / "secret"
    if settings.secret is None and (settings.object_store is None or path.is_file()):
        return load_or_create_secret(path)
    return settings.signing_secret  # or its error: a secret created here would differ from the APIs' secret


def _scopes(text: str) -> list[Scope]:
    from penstock.api_keys import Scope

    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in set(Scope)]
    if unknown or not names:
        known = ", ".join(Scope)
        raise typer.BadParameter(f"--scopes {text!r}: write some of {known}, separated by commas")
    return [Scope(name) for name in names]


def _end(text: str, now_s: float) -> float:
    """Return a key's expiry (seconds since the epoch): in `90d`, `12h` or `30m`, or a date or time in UTC."""
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    try:
        ends_s = begin_of(text).timestamp() if found is None else now_s + int(found[1]) * _UNITS_S[found[2]]
    except typer.BadParameter as error:
        raise typer.BadParameter(f"--expires {text!r}: write 90d, 12h, 30m or a date like 2027-01-31") from error
    if ends_s <= now_s:
        raise typer.BadParameter(f"--expires {text}: lies in the past")
    return ends_s


def _public_fields(record: KeyRecord, now_s: float, fingerprint: str | None = None) -> dict[str, Any]:
    """Return the public fields of a key; `fingerprint` is that of the service's secret."""
    state = record.state(at=now_s)
    return {
        "id": record.id,
        "tenant": record.tenant,
        "name": record.name,
        "scopes": list(record.scopes),
        "state": "of another secret" if state == "active" and fingerprint not in (None, record.secret_mark) else state,
        "created_at": _moment(record.created_s),
        "expires_at": None if record.expires_s is None else _moment(record.expires_s),
        "revoked_at": None if record.revoked_s is None else _moment(record.revoked_s),
    }


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
