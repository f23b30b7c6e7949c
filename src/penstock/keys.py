"""Secrets and what is signed with them: the service's own secret, and the local store's links.

A link is `GET` or `PUT` on `{base_url}/v1/local/{key}?expires=...&...&signature=...`. Everything that the link allows
is under its signature: method, key, end, file name of a download, size and type of an upload.

For the API's route:

    link = verify_link(secret, "PUT", key, request.query_params, at=time.time())   # raises LinkRefused
    link.size_bytes, link.content_type     # of a PUT: exactly these must come in
    link.filename                          # of a GET: for Content-Disposition; HEAD is verified as "GET"
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
from typing import Literal
from urllib.parse import urlencode

from penstock.errors import ConfigError, LinkRefused

#: Of the service's secret, in random bytes.
SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class Link:
    """What a signed link allows, until `expires_s` (seconds since the epoch)."""

    method: Literal["GET", "PUT"]
    key: str
    expires_s: int
    #: Of a download.
    filename: str | None = None
    #: Of an upload: exactly this many bytes of exactly this type.
    size_bytes: int | None = None
    content_type: str | None = None
    #: The number of the part that an upload in parts takes.
    part: int | None = None


def sign_link(secret: str, link: Link) -> str:
    """Return the link's query string, signature included."""
    query = {
        "expires": str(link.expires_s),
        "filename": link.filename,
        "size": None if link.size_bytes is None else str(link.size_bytes),
        "type": link.content_type,
        "part": None if link.part is None else str(link.part),
        "signature": _signature(secret, link),
    }
    return urlencode({name: value for name, value in query.items() if value is not None})


def verify_link(secret: str, method: str, key: str, query: Mapping[str, str], *, at: float) -> Link:
    """Return what the link allows; raise `LinkRefused` if it was not signed like this or is over at `at`.

    `key` is the path behind `/v1/local/` with its percent-encoding undone once; `query` likewise.
    """
    link = _read_link(method, key, query)
    given = query.get("signature", "").encode()
    if not hmac.compare_digest(given, _signature(secret, link).encode()) or at >= link.expires_s:
        raise LinkRefused
    return link


def load_or_create_secret(path: Path) -> str:
    """Return the secret in the file, which is made (mode 0600) by whoever comes first."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create_once(path, secrets.token_urlsafe(SECRET_BYTES))
        secret = path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read or make the secret {path}: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"the secret {path} is empty: remove the file, and every link signed with it ends")
    return secret


def new_webhook_secret() -> str:
    """Return a fresh secret as Standard Webhooks writes it: `whsec_` and 32 random bytes in base64."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _create_once(path: Path, text: str) -> None:
    # Written elsewhere and linked: another process sees no file or the whole of it, and never a second secret.
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


def _read_link(method: str, key: str, query: Mapping[str, str]) -> Link:
    if method not in ("GET", "PUT"):
        raise LinkRefused
    size, part = query.get("size"), query.get("part")
    try:
        return Link(
            "GET" if method == "GET" else "PUT",
            key,
            int(query["expires"]),
            filename=query.get("filename"),
            size_bytes=None if size is None else int(size),
            content_type=query.get("type"),
            part=None if part is None else int(part),
        )
    except (KeyError, ValueError) as error:
        raise LinkRefused from error


def _signature(secret: str, link: Link) -> str:
    # JSON keeps the fields apart: no two links have the same text.
    fields = [link.method, link.key, link.expires_s, link.filename, link.size_bytes, link.content_type, link.part]
    text = json.dumps(["penstock-link", *fields])
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()
