"""Browser access to an S3 store: the page follows signed links there, and browsers ask the store first (CORS)."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2

from penstock.errors import PenstockError
from penstock.storage.checks import Finding
from penstock.storage.objects.base import ObjectStore

NAME = "page"
TIMEOUT_S = 5.0
REMEDY = "allow GET and PUT from this origin in the bucket's CORS rules (docs/howto/look-at-results.md)"
_KEY = "checks/browser-access"
#: The header that a part of a large file has.
_OF_PARTS = "content-md5"


def inspect_browser_access(store: ObjectStore, base_url: str) -> Finding:
    """Send the questions of a browser on the page: reading ranges, and uploads. The API works without these rules."""
    parts = urlsplit(base_url)
    origin = f"{parts.scheme}://{parts.netloc}"
    try:
        refused = list(_refused(store, origin))
    except (PenstockError, httpx2.HTTPError) as error:
        return Finding(NAME, ok=True, detail=f"not checked: {type(error).__name__}", remedy=REMEDY, unchecked=True)
    if not refused:
        return Finding(NAME, ok=True, detail=f"browsers may read and write the store from {origin}")
    detail = f"the store does not let browsers {' and '.join(refused)} from {origin}: the page shows no maps"
    return Finding(NAME, ok=True, detail=detail, remedy=REMEDY, doubtful=True)


def _refused(store: ObjectStore, origin: str) -> Iterator[str]:
    get = store.presign_get(_KEY, filename="check", expires_s=60)
    if not _allowed(get, origin, "GET", "range"):
        yield "read"
    put = store.presign_put(_KEY, content_type="image/tiff", size_bytes=1, expires_s=60)
    names = sorted({name.lower() for name in put.headers} - {"content-length"} | {_OF_PARTS})
    if not _allowed(put.url, origin, "PUT", ",".join(names)):
        yield "write"


def _allowed(url: str, origin: str, method: str, headers: str) -> bool:
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    answer = httpx2.options(url, headers=asked, timeout=TIMEOUT_S, trust_env=False)
    methods = {each.strip() for each in answer.headers.get("access-control-allow-methods", "").split(",")}
    origins = (answer.headers.get("access-control-allow-origin"),)
    return answer.is_success and (origin in origins or "*" in origins) and bool({method, "*"} & methods)
