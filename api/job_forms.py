"""Submissions as forms: `multipart/form-data` with a job's fields and its files, in one request.

A text is a field of the job, JSON where that is no text, or else a field of the input, whose schema says what the text
means. A file is named after the field of the input that it fills: `scene`, or `scene.file` for `file` inside `scene`.
Several files of one name make a list, as one under the name `images[]` does, or one for a field that takes its files in
a list only.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile

from penstock.api.auth import tenant_of
from penstock.api.body import json_schema
from penstock.api.connection import while_connected
from penstock.api.forms import FORM, FRAME_BYTES, path_of, read_form
from penstock.api.idempotency import id_from
from penstock.api.services import Services
from penstock.client.field_texts import chosen, kinds, parse_value, put_text
from penstock.client.local_files import UsageProblem, shapes, takes_list
from penstock.errors import InvalidRequest, Issue, MalformedBody, ObjectExists, PayloadTooLarge
from penstock.intake.local_media import safe_name
from penstock.intake.media import upload_key
from penstock.jobs import JobKey
from penstock.json_body import check_json, fingerprint, is_small, parse_json, pointer, validated
from penstock.media_types import essence, is_reference
from penstock.requests import JobRequest
from penstock.storage.objects.base import CHUNK_BYTES, DEFAULT_CONTENT_TYPE, ObjectStore

#: Files of one form, at most.
MAX_FILES = 100
#: Fields of a job whose text is taken as it is; the others are JSON.
_TEXTS = frozenset({"model", "priority"})
#: Characters of a text that is read as a number, a list or an object.
MAX_VALUE_CHARS = 10_000
#: UUIDv5 namespace of upload ids from the job of a form, the file's place, name and SHA-256.
_NAMESPACE = uuid.UUID("0a4f6f50-9d35-5a59-8a5d-6f0f8b0a7c1e")


@dataclass(frozen=True, slots=True)
class FormFile:
    """A received file. `media` is the reference that its upload will have."""

    place: tuple[str, ...]
    #: True for a file of a list.
    listed: bool
    path: Path
    size_bytes: int
    content_type: str
    sha256: str
    upload_id: str
    name: str

    @property
    def media(self) -> str:
        """The file's reference."""
        return f"media://{self.upload_id}/{self.name}"


@dataclass(frozen=True, slots=True)
class JobForm:
    """A submission with its files, which are not stored yet."""

    request: JobRequest
    files: Sequence[FormFile]
    #: Texts of the input's fields by name, which the model's schema reads.
    texts: Mapping[str, str]
    #: Fingerprint of the fields and files, equal for the same form sent again.
    fingerprint: str

    def fitted(self, schema: Mapping[str, Any]) -> JobForm:
        """Return the submission with its texts as values, and single files in lists where the model takes only these.

        Raises `InvalidRequest` for a text that is no value of its field.
        """
        places = [file.place for file in self.files if takes_list(schema, file.place)]
        value = deepcopy(self.request.input) if places or self.texts else self.request.input
        for *path, last in places:
            inner = reduce(getitem, path, value)
            if not isinstance(inner[last], list):
                inner[last] = [inner[last]]
        for name, text in self.texts.items():
            _put_text(value, name, text, schema)
        return replace(self, request=self.request.model_copy(update={"input": value}))

    def store(self, objects: ObjectStore, tenant: str) -> None:
        """Store the files as uploads. The form of a repeated request finds its files stored."""
        for file in self.files:
            with suppress(ObjectExists):  # the same bytes: the id holds their SHA-256
                objects.put_file(
                    upload_key(tenant, file.upload_id, file.name), file.path, content_type=file.content_type,
                    if_absent=True,
                )  # fmt: skip


def is_form(request: Request) -> bool:
    """Return True for a request whose body is a form."""
    return essence(request.headers.get("content-type", "")) == FORM


def form_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that is JSON or a form with files."""
    schema = json_schema(model)
    form = {
        **schema,
        "required": [name for name in schema["required"] if name != "input"],
        "additionalProperties": {
            "description": "A file or a text, named after the field of the input that it fills.",
            "type": "string",
            "format": "binary",
        },
    }
    content = {"application/json": {"schema": schema}, FORM: {"schema": form}}
    return {"requestBody": {"required": True, "content": content}}


@asynccontextmanager
async def read_job_form(request: Request, api: Services, key: JobKey) -> AsyncIterator[JobForm]:
    """Yield the submission of a form; its files lie in the scratch folder during the block.

    The body may have the size of an upload and of a JSON body together. Raises the errors of a body (`read_form`),
    `PayloadTooLarge` also for a file beyond the tenant's limit of uploads, and `InvalidRequest`.
    """
    settings, tenant = api.settings, tenant_of(request)
    body_bytes, file_bytes = settings.body_limit_bytes(tenant), settings.upload_limit_bytes(tenant)
    async with read_form(
        request, limit_bytes=file_bytes + body_bytes + FRAME_BYTES, settings=settings, max_files=MAX_FILES,
        max_text_bytes=body_bytes,
    ) as form:  # fmt: skip
        document, texts = await _document(request, api, form)
        # A large input takes the processor for long, which a thread leaves to other requests every few milliseconds.
        yield await asyncio.to_thread(_job_form, document, texts, form, key, file_bytes)


async def _document(request: Request, api: Services, form: FormData) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields of a job in a form, and the texts of the model's fields."""
    found: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, text in form.multi_items():
        if isinstance(text, UploadFile):
            if name in JobRequest.model_fields:
                raise _wrong((name,), "is a file, but must be a text: send the field without a file name")
            continue
        if name in found:
            raise _wrong((name,), "is given twice")
        if name in texts:
            raise _wrong(("input", *name.split(".")), "is given twice: write a list as JSON, or with commas")
        if name not in JobRequest.model_fields:
            texts[name] = text
        else:
            found[name] = text if name in _TEXTS else await _value(request, api, name, text)
    return found, texts


class _LeftOut(Exception):
    """An empty field of a web page that is no text."""


def _put_text(value: dict[str, Any], name: str, text: str, schema: Mapping[str, Any]) -> None:
    """Put the text of a field into an input, as its schema says; raise `InvalidRequest`."""
    place = name.split(".")
    given: Any = value
    for step in place:
        given = given.get(step) if isinstance(given, dict) else None
    if given is not None:
        raise _wrong(("input", *place), "is given twice")
    try:
        put_text(value, name, text, schema, read=_read_text)
    except UsageProblem as problem:
        raise _wrong(("input", *place), str(problem).removeprefix(f"{name}: ")) from None
    except _LeftOut:
        return


def _read_text(text: str, part: Mapping[str, Any], root: Mapping[str, Any], name: str) -> Any:
    """Return the value of a form's text: the text itself where the field may be one."""
    found = list(shapes(root, part))
    if any(shape.get("format") == "media" for shape in found) and not is_reference(text):
        raise UsageProblem(f"{name}: {text[:50]!r} is no reference, and a file needs its path (curl: -F {name}=@PATH)")
    if picked := chosen(text, found):
        return picked[0]
    types = {kind for shape in found for kind in kinds(shape)}
    if "string" in types:
        return text
    if not text:
        raise _LeftOut
    if len(text) > MAX_VALUE_CHARS:
        raise UsageProblem(f"{name}: has more than {MAX_VALUE_CHARS:,} characters: write it in `input`")
    return True if text == "on" and "boolean" in types else parse_value(text, part, root, name)


async def _value(request: Request, api: Services, name: str, text: str) -> Any:
    data = text.encode("utf-8", "surrogatepass")
    try:
        if is_small(data):
            return parse_json(data)
        await api.pace.wait(tenant_of(request), len(data))
        return await while_connected(request, api.isolation.run(tenant_of(request), len(data), parse_json, data))
    except MalformedBody as error:
        raise MalformedBody(f"the field {name!r}: {error.detail}") from error


def _files(form: FormData, key: JobKey, limit_bytes: int) -> tuple[FormFile, ...]:
    """Return the files of a form in order; raise `InvalidRequest` or, beyond the limit, `PayloadTooLarge`."""
    return tuple(_file(n, name, part, key, limit_bytes) for n, (name, part) in enumerate(_parts(form)))


def _parts(form: FormData) -> Iterator[tuple[str, UploadFile]]:
    return ((name, part) for name, part in form.multi_items() if isinstance(part, UploadFile))


def _file(n: int, name: str, part: UploadFile, key: JobKey, limit_bytes: int) -> FormFile:
    place, size_bytes = tuple(name.removesuffix("[]").split(".")), part.size or 0
    if not all(place):
        raise InvalidRequest(f"{name!r} names no field of the input; write scene, or scene.file for a field inside")
    if size_bytes > limit_bytes:
        issue = Issue(pointer(("input", *place)), "too large")
        raise PayloadTooLarge(f"the file exceeds {limit_bytes} bytes", errors=[issue])
    if size_bytes == 0:
        raise _wrong(("input", *place), "is an empty file")
    digest = _sha256(part)
    filename = safe_name(part.filename or "upload")
    upload_id = id_from(_NAMESPACE, key.tenant, key.id, str(n), name, filename, digest)
    kind = part.content_type or DEFAULT_CONTENT_TYPE
    return FormFile(place, name.endswith("[]"), path_of(part), size_bytes, kind, digest, upload_id, filename)


def _sha256(part: UploadFile) -> str:
    digest = hashlib.sha256()
    while chunk := part.file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _job_form(
    document: dict[str, Any], texts: Mapping[str, str], form: FormData, key: JobKey, limit_bytes: int
) -> JobForm:
    files = _files(form, key, limit_bytes)
    sent = [[*file.place, file.listed, file.name, file.sha256] for file in files]
    check_json({"input": _filled({}, files)})  # the fields are checked as JSON, the names of files here
    if "input" not in document and (files or texts):
        document = {**document, "input": {}}
    value = document.get("input")
    if isinstance(value, dict):
        document = {**document, "input": _filled(value, files)}
    identity = fingerprint({"form": document | {"input": value}, "files": sent, **({"texts": texts} if texts else {})})
    return JobForm(validated(JobRequest, document), files, texts, identity)


def _filled(value: dict[str, Any], files: Sequence[FormFile]) -> dict[str, Any]:
    """Return an input with the files' references in their fields."""
    found = deepcopy(value)
    for place in dict.fromkeys(file.place for file in files):
        *path, last = place
        try:
            inner = reduce(lambda each, step: each.setdefault(step, {}), path, found)
        except AttributeError:
            inner = None
        if not isinstance(inner, dict):
            raise _wrong(("input", *place), "cannot be filled by a file: a field around it is no object")
        if last in inner:
            raise _wrong(("input", *place), "is given twice: in the input and as a file")
        here = [file for file in files if file.place == place]
        media = [file.media for file in here]
        inner[last] = media if len(media) > 1 or here[0].listed else media[0]
    return found


def _wrong(path: Sequence[str], why: str) -> InvalidRequest:
    return InvalidRequest(errors=[Issue(pointer(path), why)])
