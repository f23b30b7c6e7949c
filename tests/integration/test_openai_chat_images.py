"""Chats about images by OpenAI's client, with a simulated worker."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from penstock.intake.media import parse_reference
from penstock.models import Limits
from penstock.processors.multimodal.request import ImageTextRequest
from tests.support.facade_models import MODELS, Facing, entry, facing
from tests.support.valkey import ValkeyProcess

EYES = entry("eyes", "image-text-to-text", ImageTextRequest, limits=Limits(max_items=3))
PNG = b"\x89PNG\r\n\x1a\n and the rest"
ANOTHER = b"another"


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    hosts = ["pictures.example:443"]
    async with facing(valkey.url, tmp_path, models=[*MODELS, EYES], allowed_hosts=hosts) as running:
        yield running


def picture(url: str) -> Any:
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


def inside(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


async def test_pictures_keep_their_places_and_those_inside_are_uploads(face: Facing) -> None:
    url = "https://pictures.example/cat.jpg"
    content: Any = [
        {"type": "text", "text": "A"}, picture(url), {"type": "text", "text": "B"}, picture(inside(PNG)),
        picture(inside(PNG)),
    ]  # fmt: skip
    messages: Any = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": content}]
    async with face.client() as client:
        asked = asyncio.create_task(client.chat.completions.create(model="eyes", messages=messages, max_tokens=9))
        claim = await face.claim()
        await face.write(claim, "A ", "cat")
        assert (await asked).choices[0].message.content == "A cat"
    sent = claim.submission.input["messages"]
    assert sent[0] == {"role": "system", "content": "Be brief."}
    first, at_url, second, stored, again = sent[1]["content"]
    assert (first, second) == ({"type": "text", "text": "A"}, {"type": "text", "text": "B"})
    assert at_url == {"type": "image", "image": url}
    assert stored == again
    upload: Any = parse_reference(stored["image"], tenant=claim.submission.key.tenant, settings=face.service.settings)
    assert upload.key.endswith("/image.png")
    assert b"".join(face.service.objects.read(upload.key)) == PNG


async def test_a_picture_inside_needs_room_in_the_quota(valkey: ValkeyProcess, tmp_path: Path) -> None:
    models, messages = [*MODELS, EYES], [{"role": "user", "content": [picture(inside(PNG)), picture(inside(ANOTHER))]}]
    async with facing(valkey.url, tmp_path, models=models, max_tenant_kept_bytes=len(PNG)) as face:
        async with face.client() as client:
            with pytest.raises(openai.PermissionDeniedError, match=f"keeps {len(PNG)} of {len(PNG)} bytes"):
                await client.chat.completions.create(model="eyes", messages=messages)  # type: ignore[arg-type]
        assert len(list(face.service.objects.list("tenants/default/uploads/"))) == 1


async def test_a_stream_tells_of_pictures_while_it_is_made(face: Facing) -> None:
    messages: Any = [{"role": "user", "content": [picture(inside(PNG))]}]
    async with face.client() as client:
        opening = asyncio.create_task(client.chat.completions.create(model="eyes", messages=messages, stream=True))
        claim = await face.claim()
        await face.say(claim, "A ", at=0)
        stream = await opening
        chunks = [await anext(stream), await anext(stream)]
        assert (await face.job(claim.submission.key.id))["status"] == "running"
        await face.write(claim, "A ", "cat")
        chunks += [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "A ", "cat", None]


#: Refused URLs of a chat, words of the error, and its parameter.
NO_PICTURES: list[tuple[Any, ...]] = [
    ([inside(b"<svg/>", "image/svg+xml")], "is not a supported image", "messages[0].content[0].image_url.url"),
    (["data:image/png,raw"], "is not a supported image", "messages[0].content[0].image_url.url"),
    (["data:image/png;base64,!!!"], "is not base64", "messages[0].content[0].image_url.url"),
    (["data:image/png;base64,"], "is empty", "messages[0].content[0].image_url.url"),
    ([inside(bytes([n])) for n in range(4)], "the chat has 4 images; eyes accepts at most 3", None),
    (["http://169.254.169.254/latest"], ".", "messages[0].content[0].image"),
    (["https://elsewhere.example/cat.jpg"], ".", "messages[0].content[0].image"),
    (["file:///etc/passwd"], ".", "messages[0].content[0].image"),
    (["media://not-there/a.png"], ".", "messages[0].content[0].image"),
    ([""], "at least 1 char", "messages[0].content[0].image_url.url"),
]


async def test_what_is_no_picture_is_refused_before_there_is_a_job(face: Facing) -> None:
    for urls, said, param in NO_PICTURES:
        messages: Any = [{"role": "user", "content": [picture(url) for url in urls]}]
        async with face.client() as client:
            with pytest.raises(openai.BadRequestError, match=said) as caught:
                await client.chat.completions.create(model="eyes", messages=messages)
        assert caught.value.param == param, urls
        assert (await face.service.http.get("/v1/jobs")).json()["jobs"] == []


@pytest.mark.breadth
async def test_a_line_of_a_batch_has_pictures_by_url_or_inside(face: Facing) -> None:
    async def ask(url: str) -> Any:
        body = {"model": "eyes", "messages": [{"role": "user", "content": [picture(url)]}]}
        line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
        sent = await client.files.create(file=("a.jsonl", json.dumps(line).encode()), purpose="batch")
        return await client.batches.create(
            input_file_id=sent.id, endpoint="/v1/chat/completions", completion_window="24h"
        )

    async with face.client() as client:
        with pytest.raises(openai.BadRequestError, match=r"line 1: .*is not base64"):
            await ask("data:image/png;base64,!!!")
        assert (await ask(inside(PNG))).request_counts is not None
        assert (await ask("https://pictures.example/cat.jpg")).request_counts is not None


async def test_a_file_that_is_a_picture_is_one(face: Facing) -> None:
    content: Any = [
        picture(inside(ANOTHER)), {"type": "text", "text": "A"},
        {"type": "file", "file": {"filename": "cat.png", "file_data": inside(PNG)}},
    ]  # fmt: skip
    async with face.client() as client:
        asked = asyncio.create_task(
            client.chat.completions.create(model="eyes", messages=[{"role": "user", "content": content}])
        )
        claim = await face.claim()
        await face.write(claim, "A ", "cat")
        assert (await asked).choices[0].message.content == "A cat"
        [first, _, last] = claim.submission.input["messages"][0]["content"]
        assert first["image"] != last["image"]
        upload: Any = parse_reference(last["image"], tenant=claim.submission.key.tenant, settings=face.service.settings)
        assert b"".join(face.service.objects.read(upload.key)) == PNG
        content[2]["file"]["file_data"] = "data:image/svg+xml;base64,QQ=="
        with pytest.raises(openai.BadRequestError, match="is not a supported image"):
            await client.chat.completions.create(model="eyes", messages=[{"role": "user", "content": content}])


async def test_models_of_text_take_no_pictures(face: Facing) -> None:
    async with face.client() as client:
        with pytest.raises(openai.BadRequestError, match="writer does not accept images"):
            await client.chat.completions.create(
                model="writer", messages=[{"role": "user", "content": [picture(inside(PNG))]}]
            )
        with pytest.raises(openai.NotFoundError, match="embedder does not support chat; models that do: eyes, writer"):
            await client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "a"}])
