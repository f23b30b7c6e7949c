"""Access profiles: the profile of an address, and the request that is made with its credentials. Pure."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import quote, urlsplit

from penstock.config_tables import AccessProfile
from penstock.intake.addresses import WebAddress

#: Parameters of a shared access signature (SAS) of Azure's storage, which a new signature replaces.
_SAS = frozenset({
    "sv", "ss", "srt", "st", "se", "sp", "sip", "spr", "sig", "sr", "si", "sdd", "skoid", "sktid", "skt", "ske", "sks",
    "skv", "saoid", "suoid", "scid", "sduoid", "skdutid", "ses", "srh", "srq",
})  # fmt: skip
_HTTPS_PORT = 443


@dataclass(frozen=True, slots=True)
class Credentialed:
    """A request with credentials: its path with query, and the headers to add."""

    target: str
    headers: Mapping[str, str] = field(default_factory=dict)


def profile_for(profiles: Iterable[AccessProfile], address: WebAddress, tenant: str | None) -> AccessProfile | None:
    """Return the profile of a web address for a tenant; None if there is none.

    A profile that names the tenant comes before one for all, then the order of the settings counts. Credentials go over
    https, or to a host of `allowed_hosts`. Without a tenant there are none.
    """
    if address.scheme != "https" and not address.exempt:
        return None
    found = [each for each in profiles if any(_names(host, address) for host in each.hosts)]
    return _first(found, tenant)


def bucket_profile(profiles: Iterable[AccessProfile], bucket: str, tenant: str | None) -> AccessProfile | None:
    """Return the profile of a bucket for a tenant, in the same order; None if there is none."""
    return _first([each for each in profiles if any(fnmatchcase(bucket, name) for name in each.buckets)], tenant)


def is_service(profile: AccessProfile, address: WebAddress) -> bool:
    """Return True for an address of the service behind a profile, such as the login of Earthdata."""
    parts = urlsplit(profile.service)
    port = parts.port or {"https": _HTTPS_PORT, "http": 80}.get(parts.scheme)
    return (parts.scheme, parts.hostname, port) == (address.scheme, address.host, address.port)


def with_credentials(profile: AccessProfile, address: WebAddress, secret: str | None) -> Credentialed:
    """Return the request to an address of the profile's hosts, or of its service.

    `secret` is the profile's own; for `planetary-computer`, the signature for the container.
    """
    target = address.target
    match profile.kind:
        case "basic":
            return Credentialed(target, _basic(profile, secret))
        case "header":
            return Credentialed(target, {profile.header or "": secret or ""})
        case "query":
            name = profile.parameter or ""
            return Credentialed(_with_query(target, {name}, f"{name}={quote(secret or '', safe='')}"))
        case "planetary-computer":
            return Credentialed(target if secret is None else _with_query(target, _SAS, secret))
        case "earthdata" if profile.username is not None:
            return Credentialed(target, _basic(profile, secret) if is_service(profile, address) else {})
        case _:
            return Credentialed(target, {"Authorization": f"Bearer {secret}"})


def container(address: WebAddress) -> tuple[str, str] | None:
    """Return the storage account and the container of an address of Azure's storage; None if it names no container."""
    name = address.target.partition("?")[0].strip("/").partition("/")[0]
    account = address.host.partition(".")[0]
    return (account, name) if name else None


def signature(answer: Any) -> tuple[str, float] | None:
    """Return the signature and the time of its end, in seconds since the epoch, in an answer of the signing service.

    None for anything else.
    """
    if not isinstance(answer, Mapping):
        return None
    token, ends = answer.get("token"), answer.get("msft:expiry")
    if not isinstance(token, str) or not isinstance(ends, str) or not token.isascii() or not token.isprintable():
        return None
    try:
        at = datetime.fromisoformat(ends)
    except ValueError:
        return None
    return (token.lstrip("?"), at.timestamp()) if at.tzinfo is not None and not set(token) & set(" #\\") else None


def _names(pattern: str, address: WebAddress) -> bool:
    host, _, port = (pattern, "", "") if pattern.endswith("]") or ":" not in pattern else pattern.rpartition(":")
    if address.port != int(port or _HTTPS_PORT):
        return False
    own = address.host
    return own.endswith(host[1:]) if host.startswith("*.") else own == host.strip("[]")


def _first(found: Sequence[AccessProfile], tenant: str | None) -> AccessProfile | None:
    if tenant is None:
        return None
    own = (each for each in found if tenant in each.tenants)
    return next(own, next((each for each in found if not each.tenants), None))


def _basic(profile: AccessProfile, secret: str | None) -> dict[str, str]:
    pair = base64.b64encode(f"{profile.username}:{secret}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def _with_query(target: str, without: Iterable[str], added: str) -> str:
    """Return a path with query: without the parameters of some names, and with an encoded one."""
    path, _, query = target.partition("?")
    gone = frozenset(without)
    kept = [part for part in query.split("&") if part and part.partition("=")[0] not in gone]
    return f"{path}?{'&'.join([*kept, added])}"
