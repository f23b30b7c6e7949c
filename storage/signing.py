"""Secrets and signatures: the service's own secret, and the signed links of the local store.

A link is `GET` or `PUT` on `{base_url}/v1/local/{key}?expires=...&...&signature=...`. The signature covers everything
that the link allows: method, key, expiry, file name of a download, size and type of an upload. `TILES` is the
permission to see a raster: its key is no object's, but `{tenant}/{job}/{kind}/{name}`.

For the API's route:

    link = verify_link(secret, "PUT", key, request.query_params, at=time.time())   # raises LinkRefused
    link.size_bytes, link.content_type     # PUT: the upload must match both exactly
    link.filename                          # GET: for Content-Disposition; HEAD is verified as "GET"
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import urlencode

from penstock.errors import ConfigError, LinkRefused

#: Random bytes in the service's secret.
SECRET_BYTES = 32

Method: TypeAlias = Literal["GET", "PUT", "TILES"]


@dataclass(frozen=True, slots=True)
class SignedLink:
    """The permission of a signed link, valid until `expires_s` (seconds since the epoch)."""

    method: Method
    key: str
    expires_s: int
    #: File name of a download.
    filename: str | None = None
    #: Exact size in bytes and exact type of an upload.
    size_bytes: int | None = None
    content_type: str | None = None
    #: Number of the part in a multipart upload.
    part: int | None = None


def sign_link(secret: str, link: SignedLink) -> str:
    """Return the link's query string with its signature."""
    query = {
        "expires": str(link.expires_s),
        "filename": link.filename,
        "size": None if link.size_bytes is None else str(link.size_bytes),
        "type": link.content_type,
        "part": None if link.part is None else str(link.part),
        "signature": _signature(secret, link),
    }
    return urlencode({name: value for name, value in query.items() if value is not None})


def verify_link(secret: str, method: Method, key: str, query: Mapping[str, str], *, at: float) -> SignedLink:
    """Return the permission of a link; raise `LinkRefused` if its signature is wrong or it has expired at `at`.

    `key` is the path after `/v1/local/`, percent-decoded once, as is `query`.
    """
    link = _read_link(method, key, query)
    given = query.get("signature", "").encode()
    if not hmac.compare_digest(given, _signature(secret, link).encode()) or at >= link.expires_s:
        raise LinkRefused
    return link


def load_or_create_secret(path: Path) -> str:
    """Return the secret in the file; the first caller creates the file (mode 0600)."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create_once(path, secrets.token_urlsafe(SECRET_BYTES))
        secret = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read or create the secret {path}: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"the secret {path} is empty: delete the file; this invalidates every link signed with it")
    return secret


def new_webhook_secret() -> str:
    """Return a new secret in the format of Standard Webhooks: `whsec_` and 32 random bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _create_once(path: Path, text: str) -> None:
    # Written elsewhere and linked: other processes see no file or the complete one, and never a second secret.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    draft = Path(name)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.hardlink_to(draft)
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def _read_link(method: Method, key: str, query: Mapping[str, str]) -> SignedLink:
    size, part = query.get("size"), query.get("part")
    try:
        return SignedLink(
            method,
            key,
            int(query["expires"]),
            filename=query.get("filename"),
            size_bytes=None if size is None else int(size),
            content_type=query.get("type"),
            part=None if part is None else int(part),
        )
    except (KeyError, ValueError) as error:
        raise LinkRefused from error


def _signature(secret: str, link: SignedLink) -> str:
    # JSON separates the fields: different links have different texts.
    fields = [link.method, link.key, link.expires_s, link.filename, link.size_bytes, link.content_type, link.part]
    text = json.dumps(["penstock-link", *fields])
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
