"""Any IO-processor plugin of vLLM at `/pooling`: `data` goes to it as it is, and its answer comes back.

Files in the request, as a `data:` URL or as base64, become uploads. Files in the answer are artifacts of the job, and
become base64 again.
"""

from __future__ import annotations

import json
import mimetypes
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.api.facades.calls import Call
from penstock.api.facades.media import store_upload
from penstock.api.facades.pooling.forms import base64_of
from penstock.errors import InvalidRequest, Issue
from penstock.intake.inline_media import decode_base64
from penstock.jobs import Job
from penstock.media_types import is_media_type
from penstock.models import CatalogueEntry, media_references
from penstock.requests import JobRequest
from penstock.storage.objects.base import DEFAULT_CONTENT_TYPE

_ADDRESS = re.compile(r"(media|s3|https?)://")
_DATA_URL = re.compile(r"data:(?P<type>[\w.+/-]*)(;[\w=.+-]+)*;base64,", re.IGNORECASE)

#: Function from an artifact's key to its bytes.
Read = Callable[[str], Iterable[bytes]]


async def plugin_job(call: Call, entry: CatalogueEntry, data: Any) -> JobRequest:
    """Return the job request for a plugin's data; files in it are stored as uploads. Raises `InvalidRequest`."""
    fields = entry.input_schema.get("properties", {})
    if not isinstance(data, dict):
        known = ", ".join(fields) or "none"
        raise InvalidRequest(errors=[Issue("/data", f"must be an object with the fields of {entry.name}: {known}")])
    given = {place.removeprefix("/"): text for place, text in media_references(entry.input_schema, data)}
    inline = {name: text for name, text in given.items() if name in data and not _ADDRESS.match(text)}
    stored = {name: await _reference(call, name, text) for name, text in inline.items()}
    return JobRequest(model=entry.name, input={**data, **stored})


async def _reference(call: Call, name: str, given: str) -> str:
    """Return the reference of a file that is part of the request."""
    said = _DATA_URL.match(given)
    media_type = said["type"] if said and is_media_type(said["type"]) else DEFAULT_CONTENT_TYPE
    data = decode_base64(given[said.end() :] if said else given, f"/data/{name}")
    suffix = (mimetypes.guess_extension(media_type) or "") if said else ""
    return await store_upload(call.api, call.tenant, data, f"file{suffix}", media_type)


def answer_of(job: Job, read: Read) -> Iterator[bytes]:
    """Yield the response as JSON while the files of the answer are read, with a few chunks in memory."""
    keys = {artifact.name: artifact.key for artifact in job.artifacts}
    mark = secrets.token_hex(16)  # no answer holds it
    data = _marked((job.data or {}).get("data"), keys, mark)
    document = {"request_id": job.key.id, "created_at": int(job.created_s), "data": data}
    # Every second piece is the name of a file.
    for number, piece in enumerate(re.split(f"{mark}:([^:]*):", json.dumps(document, ensure_ascii=False))):
        if number % 2:
            yield from base64_of(read(keys[piece]))
        else:
            yield piece.encode()


def _marked(answer: Any, keys: Mapping[str, str], mark: str) -> Any:
    """Return the answer with a marked text in the place of each `{"artifact": name}` of a file that the job has."""
    match answer:
        case {"artifact": str(name), **others} if not others and name in keys:
            return f"{mark}:{name}:"
        case dict():
            return {key: _marked(value, keys, mark) for key, value in answer.items()}
        case list():
            return [_marked(value, keys, mark) for value in answer]
        case _:
            return answer
