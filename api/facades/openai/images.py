"""OpenAI's image generation: the request, its job, and the response."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from penstock.api.facades.openai.requests import Body, ModelName, non_negative, read_body
from penstock.api.services import Services
from penstock.errors import InvalidRequest, Issue, ObjectNotFound, UnknownArtifact
from penstock.jobs import Artifact, Job
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
_SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")


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
