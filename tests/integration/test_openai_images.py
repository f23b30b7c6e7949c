"""Images by OpenAI's client, with a simulated worker."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from PIL import Image

from penstock.errors import OutOfMemory
from penstock.jobs import Claim, State
from penstock.processors.image_generation.request import ImageGenerationRequest
from penstock.storage.redis.records import Outcome
from tests.support.facade_models import Facing, entry, facing
from tests.support.valkey import ValkeyProcess


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path) as running:
        yield running


async def draw(face: Facing, claim: Claim) -> None:
    """End a job with as many files as it asks for."""
    wanted = claim.submission.input
    kind = wanted["format"]
    names = [f"image-{number}.{kind}" for number in range(1, wanted["n"] + 1)]
    files = tuple(face.service.store_artifact(claim, name, name.encode(), f"image/{kind}") for name in names)
    images = [{"name": name, "seed": wanted["seed"] + number} for number, name in enumerate(names)]
    data = {"images": images, "width": wanted.get("width", 64), "height": wanted.get("height", 64)}
    await face.service.end(claim, Outcome(State.SUCCEEDED, data=data, artifacts=files))


async def test_images_come_by_links_that_need_no_key(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(client.images.generate(model="painter", prompt="a lighthouse", n=2, size="96x64"))
        claim = await face.claim()
        wanted = dict(claim.submission.input)
        assert 0 <= wanted.pop("seed") < 2**62
        assert wanted == {"prompt": "a lighthouse", "n": 2, "width": 96, "height": 64, "format": "png"}
        await draw(face, claim)
        answer = await asked
    assert (answer.output_format, answer.size, answer._request_id) == ("png", "96x64", claim.submission.key.id)
    assert answer.data is not None
    async with httpx2.AsyncClient() as plain:
        links = [httpx2.URL(image.url or "") for image in answer.data]
        got = [await plain.get(face.url + link.raw_path.decode()) for link in links]
    assert [response.content for response in got] == [b"image-1.png", b"image-2.png"]
    assert got[0].headers["content-type"] == "image/png"


async def test_images_come_as_base64_with_what_diffusers_know(face: Facing) -> None:
    more = {"negative_prompt": "rain", "num_inference_steps": 9, "guidance_scale": 4, "seed": -1}
    async with face.client() as client:
        asked = asyncio.create_task(
            client.images.generate(
                model="painter", prompt="a boat", response_format="b64_json", output_format="webp", extra_body=more
            )
        )
        claim = await face.claim()
        assert claim.submission.input == {
            "prompt": "a boat", "n": 1, "negative_prompt": "rain", "steps": 9, "guidance_scale": 4,
            "seed": 2**62 - 1, "format": "webp",
        }  # fmt: skip
        await draw(face, claim)
        answer = await asked
    assert answer.data is not None
    assert [base64.b64decode(image.b64_json or "") for image in answer.data] == [b"image-1.webp"]
    assert answer.data[0].url is None


#: Refused arguments, their error, its parameter, and words of its message.
WRONG: list[tuple[Any, ...]] = [
    ({"n": 101}, openai.BadRequestError, "n", "100"),
    ({"n": 0}, openai.BadRequestError, "n", "1"),
    ({"size": "huge"}, openai.BadRequestError, "size", "match pattern"),
    ({"size": "4x4"}, openai.BadRequestError, "size", "8"),
    ({"prompt": ""}, openai.BadRequestError, "prompt", "at least 1 char"),
    ({"background": "transparent"}, openai.BadRequestError, "background", "not supported"),
    ({"stream": True}, openai.BadRequestError, "stream", "not supported"),
    ({"quality": "high"}, openai.BadRequestError, "quality", "not supported"),
    ({"output_format": "jpeg"}, openai.BadRequestError, "output_format", "png"),
    ({"extra_body": {"num_inference_steps": 10**6}}, openai.BadRequestError, "num_inference_steps", "10000"),
    (
        {"model": "writer"},
        openai.NotFoundError,
        None,
        "writer does not support image generation; models that do: painter",
    ),
    ({"model": "nobody"}, openai.NotFoundError, "model", "there is no such model"),
]


async def test_what_does_not_fit_is_refused_in_openais_words(face: Facing) -> None:
    for wrong, error, param, words in WRONG:
        async with face.client() as client:
            with pytest.raises(error, match=words) as caught:
                await client.images.generate(**{"model": "painter", "prompt": "a", **wrong})
        assert caught.value.param == param, words


async def test_a_job_that_fails_has_its_errors_status(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(client.images.generate(model="painter", prompt="a boat"))
        report = OutOfMemory("the image was too large for the device").report()
        await face.service.end(await face.claim(), Outcome(State.FAILED, error=report))
        with pytest.raises(openai.APIStatusError, match="too large for the device") as caught:
            await asked
    assert caught.value.code == "out_of_memory"


async def test_images_that_are_too_large_for_base64_are_refused_by_name(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(client.images.generate(model="painter", prompt="a", response_format="b64_json"))
        claim = await face.claim()
        file = face.service.store_artifact(claim, "image-1.png", b"x" * 50_000_001, "image/png")
        data = {"images": [{"name": "image-1.png", "seed": 1}], "width": 64, "height": 64}
        await face.service.end(claim, Outcome(State.SUCCEEDED, data=data, artifacts=(file,)))
        with pytest.raises(openai.BadRequestError, match="request `url` instead") as caught:
            await asked
    assert caught.value.param == "response_format"


def picture(mode: str = "RGB") -> tuple[str, bytes, str]:
    file = io.BytesIO()
    Image.new(mode, (64, 48)).save(file, "PNG")
    return f"{mode}.png", file.getvalue(), "image/png"


async def test_an_edit_is_a_job_on_uploads_whose_mask_is_transparent(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(
            client.images.edit(
                model="painter", image=picture(), mask=picture("RGBA"), prompt="a boat", n=2, size="64x48",
                response_format="b64_json", output_format="webp",
                extra_body={"seed": 7, "strength": 0.5, "num_inference_steps": 9},
            )
        )  # fmt: skip
        claim = await face.claim()
        wanted = dict(claim.submission.input)
        stored = {name: wanted.pop(name) for name in ("image", "mask")}
        assert wanted == {
            "prompt": "a boat", "n": 2, "width": 64, "height": 48, "steps": 9, "seed": 7, "strength": 0.5,
            "mask_edits": "transparent", "format": "webp",
        }  # fmt: skip
        for name, (_, content, _) in (("image", picture()), ("mask", picture("RGBA"))):
            key = stored[name].removeprefix("media://")
            assert face.service.objects.get_bytes(f"tenants/default/uploads/{key}", limit_bytes=10**6) == content
        await draw(face, claim)
        answer = await asked
    assert (answer.output_format, answer.size) == ("webp", "64x48")
    assert [base64.b64decode(one.b64_json or "") for one in answer.data or ()] == [b"image-1.webp", b"image-2.webp"]


async def test_an_edit_without_a_mask_may_have_its_image_in_a_list(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(client.images.edit(model="painter", image=[picture()], prompt="a boat"))
        claim = await face.claim()
        assert claim.submission.input.keys() == {"prompt", "n", "seed", "format", "image", "mask_edits"}
        await draw(face, claim)
        assert len((await asked).data or ()) == 1


#: Refused arguments of an edit, the error's parameter, and words of its message.
WRONG_EDITS: list[tuple[Any, ...]] = [
    ({"image": [picture(), picture()]}, "image", "one file"),
    ({"extra_body": {"mask": "white"}}, "mask", "is not a file"),
    ({"extra_body": {"strength": 2}}, "strength", "less than or equal to 1"),
    ({"background": "transparent"}, "background", "not supported"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"prompt": ""}, "prompt", "required"),
]


async def test_an_edit_that_does_not_fit_is_refused_by_name(face: Facing) -> None:
    for wrong, param, words in WRONG_EDITS:
        async with face.client() as client:
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                await client.images.edit(**{"model": "painter", "image": picture(), "prompt": "a", **wrong})
        assert caught.value.param == param, words


async def test_an_edit_without_a_file_says_what_is_missing(face: Facing) -> None:
    async with httpx2.AsyncClient() as plain:
        for sent in ({"json": {"model": "painter"}}, {"data": {"model": "painter", "prompt": "a"}}, {}):
            answer = await plain.post(f"{face.url}/openai/v1/images/edits", **sent)  # type: ignore[arg-type]
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert (error["param"], error["message"].count("multipart/form-data")) == ("image", 1)


async def test_a_model_that_changes_no_images_says_only_that(valkey: ValkeyProcess, tmp_path: Path) -> None:
    dreamer = entry("dreamer", "image-generation", ImageGenerationRequest)
    async with facing(valkey.url, tmp_path, models=[dreamer]) as face, face.client() as client:
        with pytest.raises(openai.BadRequestError, match="dreamer makes images of a prompt alone") as caught:
            await client.images.edit(model="dreamer", image=picture(), prompt="a", size="64x64")
    assert caught.value.param == "model"
    assert "mask" not in str(caught.value)
