"""Images as OpenAI's clients ask for them: what they send, the job that it asks for, and its files as an answer."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from penstock.api.facades.openai.requests import Body, ModelName, natural, read_body
from penstock.api.services import Services
from penstock.errors import InvalidRequest, ObjectNotFound, UnknownArtifact
from penstock.jobs import Artifact, Job
from penstock.models import CatalogueEntry
from penstock.reports import Issue
from penstock.requests import JobRequest

#: What one answer holds of files by value: the API has it in memory, and again as base64.
MAX_VALUE_BYTES = 50_000_000

#: Parameters that would change an image in ways that no model here can -> the values that do not.
_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "background": ("auto", "opaque"), "output_compression": (100,), "partial_images": (0,),
        "quality": ("auto", "standard"), "stream": (False,), "style": (),
    }
)  # fmt: skip
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


class ImagesRequest(Body):
    """`POST /v1/images/generations`, with parameters that other servers of diffusion models have beside OpenAI's."""

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


def read_images(body: Any) -> ImagesRequest:
    """Return the body of a request for images; raise `InvalidRequest`."""
    return read_body(ImagesRequest, body, _REFUSED)


def images_job(entry: CatalogueEntry, wanted: ImagesRequest, *, seed: int) -> JobRequest:
    """Return the job of a request for images. `seed` is taken where the request names none."""
    found = _SIZE.fullmatch(wanted.size or "")
    value = {
        "prompt": wanted.prompt,
        "negative_prompt": wanted.negative_prompt,
        "n": wanted.n,
        "width": int(found[1]) if found else None,
        "height": int(found[2]) if found else None,
        "steps": wanted.num_inference_steps,
        "guidance_scale": wanted.guidance_scale,
        "seed": natural(seed if wanted.seed is None else wanted.seed, 62),
        "format": wanted.output_format,
    }
    return JobRequest(model=entry.name, input={name: given for name, given in value.items() if given is not None})


async def images(api: Services, job: Job, wanted: ImagesRequest) -> dict[str, Any]:
    """Return a finished job's images, by links that last for an hour (`link_expires_s`) or as base64.

    Raises `InvalidRequest` where they are too large for the latter.
    """
    names = [str(image["name"]) for image in (job.data or {}).get("images", ())]
    files = {file.name: file for file in job.artifacts}
    made = [files[name] for name in names if name in files]
    by_value = wanted.response_format == "b64_json"
    if by_value and sum(file.size_bytes for file in made) > MAX_VALUE_BYTES:
        why = f"the images have more than {MAX_VALUE_BYTES} bytes: ask for their url"
        raise InvalidRequest(why, errors=[Issue("/response_format", why)])
    data = [{"b64_json": await _base64(api, file)} if by_value else {"url": await _link(api, file)} for file in made]
    size = "{width}x{height}".format(**{side: (job.data or {}).get(side) for side in ("width", "height")})
    return {"created": int(job.created_s), "data": data, "output_format": wanted.output_format or "png", "size": size}


async def _base64(api: Services, file: Artifact) -> str:
    try:
        content = await asyncio.to_thread(api.objects.get_bytes, file.key, limit_bytes=MAX_VALUE_BYTES)
    except ObjectNotFound as error:
        raise UnknownArtifact("the file is gone") from error
    return base64.b64encode(content).decode()


async def _link(api: Services, file: Artifact) -> str:
    expires_s = api.settings.link_expires_s
    return await asyncio.to_thread(api.objects.presign_get, file.key, filename=file.name, expires_s=expires_s)
