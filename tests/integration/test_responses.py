"""OpenAI's Responses API with its client: create, in the background or not, retrieve and cancel."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from penstock.errors import InvalidInput
from penstock.jobs import State
from penstock.models import Limits
from penstock.processors.multimodal.request import ImageTextRequest
from penstock.storage.redis.records import Outcome
from tests.integration.test_openai_chat_images import PNG, inside
from tests.support.facade_models import MODELS, Facing, entry, facing
from tests.support.valkey import ValkeyProcess

EYES = entry("eyes", "image-text-to-text", ImageTextRequest, limits=Limits(max_items=3))


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path, models=[*MODELS, EYES]) as running:
        yield running


async def test_a_response_is_waited_for_and_retrieved(face: Facing) -> None:
    async with face.client() as client:
        asking = asyncio.create_task(
            client.responses.create(
                model="writer", instructions="Be brief.", input="Hello", max_output_tokens=7, temperature=0.5,
                metadata={"who": "me"},
            )
        )  # fmt: skip
        claim = await face.claim()
        sent = claim.submission.input
        assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
        assert (sent["max_new_tokens"], sent["temperature"]) == (7, 0.5)
        await face.write(claim, "Good ", "day")
        made = await asking
        assert (made.status, made.output_text, made.metadata) == ("completed", "Good day", {"who": "me"})
        assert (made.id, made.model) == (f"resp_{claim.submission.key.id.replace('-', '')}", "writer")
        assert made.usage is not None
        assert (made.usage.input_tokens, made.usage.output_tokens, made.usage.total_tokens) == (3, 2, 5)
        assert await client.responses.retrieve(made.id) == made


async def test_a_response_is_streamed_as_events(face: Facing) -> None:
    async with face.client() as client:
        asking = asyncio.create_task(client.responses.create(model="writer", input="Hello", stream=True))
        claim = await face.claim()
        await face.write(claim, "Good ", "day")
        events = [event async for event in await asking]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        kinds = [event.type.removeprefix("response.") for event in events]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Good day"
        assert events[-1].type == "response.completed"
        whole = events[-1].response
        assert (whole.output_text, whole.status) == ("Good day", "completed")
        assert await client.responses.retrieve(whole.id) == whole


async def test_a_streamed_response_whose_job_fails_before_its_text_raises_its_error(face: Facing) -> None:
    async with face.client() as client:
        asking = asyncio.create_task(client.responses.create(model="writer", input="Hello", stream=True))
        claim = await face.claim()
        await face.service.end(claim, Outcome(State.FAILED, error=InvalidInput("too long").report()))
        with pytest.raises(openai.APIStatusError, match="too long"):
            await asking


async def test_a_response_in_the_background_is_polled(face: Facing) -> None:
    async with face.client() as client:
        made = await client.responses.create(model="writer", input="Hello", background=True)
        assert (made.status, made.output_text, made.error) == ("queued", "", None)
        claim = await face.claim()
        assert (await client.responses.retrieve(made.id)).status == "in_progress"
        await face.write(claim, "Good", reason="length")
        ended = await client.responses.retrieve(made.id)
        assert (ended.status, ended.output_text) == ("incomplete", "Good")
        assert ended.incomplete_details is not None
        assert ended.incomplete_details.reason == "max_output_tokens"


async def test_a_response_is_canceled(face: Facing) -> None:
    async with face.client() as client:
        made = await client.responses.create(model="writer", input="Hello", background=True)
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        assert (await client.responses.retrieve(made.id)).status == "cancelled"


async def test_a_failed_response_says_why(face: Facing) -> None:
    async with face.client() as client:
        made = await client.responses.create(model="writer", input="Hello", background=True)
        claim = await face.claim()
        await face.service.end(claim, Outcome(State.FAILED, error=InvalidInput("the text is empty").report()))
        ended = await client.responses.retrieve(made.id)
        assert (ended.status, ended.output_text) == ("failed", "")
        assert ended.error is not None
        assert (ended.error.code, ended.error.message) == ("invalid_input", "the text is empty")


async def test_messages_and_images_of_the_input(face: Facing) -> None:
    said: Any = [
        {"role": "user", "content": "Hello"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        {"role": "user", "content": [
            {"type": "input_text", "text": "What is it?"},
            {"type": "input_image", "image_url": inside(PNG), "detail": "auto"},
        ]},
    ]  # fmt: skip
    async with face.client() as client:
        asking = asyncio.create_task(client.responses.create(model="eyes", input=said))
        claim = await face.claim()
        first, second, third = claim.submission.input["messages"]
        assert (first["content"], second["role"]) == ("Hello", "assistant")
        text, image = third["content"]
        assert (text["text"], image["type"]) == ("What is it?", "image")
        assert image["image"].startswith("media://")
        await face.write(claim, "A cat")
        assert (await asking).output_text == "A cat"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"previous_response_id": "resp_1"}, "conversations are not stored here; send all messages as `input`"),
        ({"conversation": "conv_1"}, "conversations are not stored here"),
        ({"tools": [{"type": "web_search"}]}, "this service runs no tools"),
        ({"text": {"format": {"type": "json_object"}}}, "plain text"),
        ({"prompt": {"id": "pmpt_1"}}, "prompts are not stored here"),
    ],
)
async def test_what_is_not_supported_is_refused_in_words(face: Facing, given: Any, words: str) -> None:
    async with face.client() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="writer", input="Hello", **given)
    assert words in str(caught.value)
    assert caught.value.param == next(iter(given))
    assert (await face.service.http.get("/v1/jobs")).json()["jobs"] == []


async def test_parameters_without_an_effect_are_accepted(face: Facing) -> None:
    async with face.client() as client:
        made = await client.responses.create(
            model="writer", input="Hello", background=True, tools=[], tool_choice="auto", store=True, stream=False,
            text={"format": {"type": "text"}},
        )  # fmt: skip
    assert made.status == "queued"


async def test_only_responses_are_found(face: Facing) -> None:
    async with face.client() as client:
        asking = asyncio.create_task(
            client.chat.completions.create(model="writer", messages=[{"role": "user", "content": "Hello"}])
        )
        claim = await face.claim()
        for wanted in (f"resp_{claim.submission.key.id.replace('-', '')}", f"resp_{uuid.uuid4().hex}", "resp_x"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(wanted)
            with pytest.raises(openai.NotFoundError):
                await client.responses.cancel(wanted)
        await face.write(claim, "Good day")
        await asking
