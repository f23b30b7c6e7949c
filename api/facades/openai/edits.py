"""OpenAI's image edits: a form with an image, a mask or none, and a prompt.

The transparent pixels of the mask are painted anew, as OpenAI's documentation says; without a mask those of the image,
or all of an image without such pixels.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field
from starlette.datastructures import FormData, UploadFile

from penstock.api.facades.calls import CurrentCall, json_answer
from penstock.api.facades.capabilities import Capability
from penstock.api.facades.media import store_file
from penstock.api.facades.openai.images import REFUSED, ImagesRequest, images, images_job
from penstock.api.facades.openai.requests import read_body
from penstock.api.forms import FORM, FRAME_BYTES, read_form
from penstock.errors import InvalidRequest, Issue
from penstock.json_body import fingerprint

#: Names of the field of images: clients send a list under the second one.
_IMAGES = ("image", "image[]")
#: Parameters without an effect here, as forms have them.
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    **{name: (*values, *(str(value).lower() for value in values)) for name, values in REFUSED.items()},
    "input_fidelity": ("high", "low"),
}

router = APIRouter(prefix="/openai/v1/images", tags=["facades"], include_in_schema=False)


class EditsRequest(ImagesRequest):
    """The form fields of `POST /v1/images/edits`, without the files."""

    model_config = ConfigDict(frozen=True, strict=False)

    strength: Annotated[float, Field(gt=0, le=1)] | None = None


@router.post("/edits")
async def create_edit(call: CurrentCall) -> Response:
    """Change an image by a prompt, or a part of it by a mask."""
    if not call.request.headers.get("content-type", "").lower().startswith(FORM):
        why = f"is required, as a file of a form ({FORM})"
        raise InvalidRequest(f"'image' {why}", errors=[Issue("/image", why)])
    limit_bytes = call.api.settings.upload_limit_bytes(call.tenant) + FRAME_BYTES
    async with read_form(call.request, limit_bytes=limit_bytes, settings=call.api.settings, max_files=3) as form:
        wanted, image, mask = read_edits(form), _image(form), _mask(form)
        entry = await call.model(wanted.model, Capability.IMAGE_GENERATION)
        if "image" not in entry.input_schema.get("properties", {"image": {}}):
            why = f"{entry.name} makes images of a prompt alone; it does not change images"
            raise InvalidRequest(why, errors=[Issue("/model", why)])
        stored = {"image": await store_file(call, image, "image.png")}
        if mask is not None:
            stored["mask"] = await store_file(call, mask, "mask.png")
    body = {**wanted.model_dump(), **{name: file.digest for name, file in stored.items()}}
    identity = fingerprint({"path": call.request.url.path, "body": body})
    references = {name: file.reference for name, file in stored.items()}
    also = {**references, "mask_edits": "transparent", "strength": wanted.strength}
    job = await call.submit(identity, images_job(entry, wanted, seed=secrets.randbelow(2**63), also=also))
    return json_answer(job, await images(call.api, await call.wait_for_result(job), wanted))


def read_edits(form: FormData) -> EditsRequest:
    """Return a form's request; raise `InvalidRequest`, also for unsupported fields that would change the result."""
    return read_body(
        EditsRequest, {name: value for name, value in form.items() if isinstance(value, str) and value}, _REFUSED
    )


def _image(form: FormData) -> UploadFile:
    found = [file for name in _IMAGES for file in form.getlist(name)]
    if len(found) != 1 or not isinstance(found[0], UploadFile):
        raise InvalidRequest(errors=[Issue("/image", "is required, as one file")])
    return found[0]


def _mask(form: FormData) -> UploadFile | None:
    found = form.get("mask")
    if found in (None, ""):
        return None
    if not isinstance(found, UploadFile):
        raise InvalidRequest(errors=[Issue("/mask", "is not a file")])
    return found
