"""OpenAI's image generations, and its edits: a form with an image, a mask or none, and a prompt.

The transparent pixels of the mask are painted anew, as OpenAI's documentation says; without a mask those of the image,
or all of an image without such pixels.
"""

from __future__ import annotations

import asyncio
import base64
import re
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field, StringConstraints
from starlette.datastructures import FormData, UploadFile

from penstock.api.facades.calls import CurrentCall, json_answer, store_file
from penstock.api.facades.capabilities import Capability
from penstock.api.facades.openai.requests import Body, ModelName, invalid, non_negative, read_body
from penstock.api.forms import FORM, FRAME_BYTES, read_form
from penstock.api.services import Services
from penstock.errors import InvalidRequest, Issue, ObjectNotFound, UnknownArtifact
from penstock.jobs import Artifact, Job
from penstock.json_body import fingerprint
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest

#: Bytes of inline images per response; the API holds them in memory, and again as base64.
MAX_VALUE_BYTES = 50_000_000

#: Parameters that no model supports -> their values without effect, which are accepted.
REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "background": ("auto", "opaque"), "output_compression": (100,), "partial_images": (0,),
        "quality": ("auto", "standard"), "stream": (False,), "style": (),
    }
)  # fmt: skip
#: Names of the field of images: clients send a list under the second one.
_IMAGES = ("image", "image[]")
#: Parameters without an effect here, as forms have them.
_REFUSED_IN_FORMS: Mapping[str, tuple[Any, ...]] = {
    **{name: (*values, *(str(value).lower() for value in values)) for name, values in REFUSED.items()},
    "input_fidelity": ("high", "low"),
}
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")

router = APIRouter(prefix="/openai/v1/images", tags=["facades"], include_in_schema=False)


class ImagesRequest(Body):
    """`POST /v1/images/generations`, with common parameters of other diffusion servers."""

    model: ModelName
    prompt: Annotated[str, StringConstraints(min_length=1)]
    n: Annotated[int, Field(ge=1)] | None = 1
    size: Annotated[str, StringConstraints(pattern=r"^(auto|\d{1,5}x\d{1,5})$")] | None = None
    response_format: Literal["url", "b64_json"] | None = "url"
    output_format: Literal["png", "webp"] | None = "png"
    seed: int | None = None
    negative_prompt: str | None = None
    num_inference_steps: Annotated[int, Field(ge=1)] | None = None
    guidance_scale: Annotated[float, Field(ge=0)] | None = None


class EditsRequest(ImagesRequest):
    """The form fields of `POST /v1/images/edits`, without the files."""

    model_config = ConfigDict(frozen=True, strict=False)

    strength: Annotated[float, Field(gt=0, le=1)] | None = None


def read_images(body: Any) -> ImagesRequest:
    """Return an image generation request; raise `InvalidRequest`."""
    return read_body(ImagesRequest, body, REFUSED)


def images_job(
    entry: CatalogueEntry, wanted: ImagesRequest, *, seed: int, also: Mapping[str, Any] = MappingProxyType({})
) -> JobRequest:
    """Return the job of an image generation request, with further inputs.

    `seed` applies where the request has none.
    """
    found = _SIZE.fullmatch(wanted.size or "")
    value = {
        "prompt": wanted.prompt,
        "negative_prompt": wanted.negative_prompt,
        "n": wanted.n,
        "width": int(found[1]) if found else None,
        "height": int(found[2]) if found else None,
        "steps": wanted.num_inference_steps,
        "guidance_scale": wanted.guidance_scale,
        "seed": non_negative(seed if wanted.seed is None else wanted.seed, 62),
        "format": wanted.output_format,
        **also,
    }
    return JobRequest(model=entry.name, input={name: given for name, given in value.items() if given is not None})


async def images(api: Services, job: Job, wanted: ImagesRequest) -> dict[str, Any]:
    """Return a finished job's images, as links valid for `link_expires_s` or as base64.

    Raises `InvalidRequest` for base64 beyond `MAX_VALUE_BYTES`.
    """
    names = [str(image["name"]) for image in (job.data or {}).get("images", ())]
    files = {file.name: file for file in job.artifacts}
    found = [files[name] for name in names if name in files]
    by_value = wanted.response_format == "b64_json"
    if by_value and sum(file.size_bytes for file in found) > MAX_VALUE_BYTES:
        why = f"the images have more than {MAX_VALUE_BYTES} bytes together; request `url` instead"
        raise InvalidRequest(why, errors=[Issue("/response_format", why)])
    data = [{"b64_json": await _base64(api, file)} if by_value else {"url": await _link(api, file)} for file in found]
    size = "{width}x{height}".format(**{side: (job.data or {}).get(side) for side in ("width", "height")})
    return {"created": int(job.created_s), "data": data, "output_format": wanted.output_format or "png", "size": size}


async def _base64(api: Services, file: Artifact) -> str:
    try:
        content = await asyncio.to_thread(api.objects.get_bytes, file.key, limit_bytes=MAX_VALUE_BYTES)
    except ObjectNotFound as error:
        raise UnknownArtifact("the file no longer exists") from error
    return base64.b64encode(content).decode()


async def _link(api: Services, file: Artifact) -> str:
    expires_s = api.settings.link_expires_s
    return await asyncio.to_thread(api.objects.presign_get, file.key, filename=file.name, expires_s=expires_s)


@router.post("/generations")
async def create_images(call: CurrentCall) -> Response:
    """Generate images from a prompt."""
    body = await call.read(read_images)
    wanted = body.value
    entry = await call.model(wanted.model, Capability.IMAGE_GENERATION)
    job = await call.submit(body.fingerprint, images_job(entry, wanted, seed=secrets.randbelow(2**63)))
    return json_answer(job, await images(call.api, await call.wait_for_result(job), wanted))


@router.post("/edits")
async def create_edit(call: CurrentCall) -> Response:
    """Change an image by a prompt, or a part of it by a mask."""
    if not call.request.headers.get("content-type", "").lower().startswith(FORM):
        raise invalid("image", f"is required, as a file of a form ({FORM})")
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
        EditsRequest,
        {name: value for name, value in form.items() if isinstance(value, str) and value},
        _REFUSED_IN_FORMS,
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
