"""Transcriptions and translations by OpenAI's client, with a simulated worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from penstock.errors import MediaUnreadable
from penstock.jobs import Claim, State
from penstock.storage.redis.records import Outcome
from tests.support.facade_models import Facing, facing
from tests.support.valkey import ValkeyProcess

SOUND = ("Go forward.wav", b"RIFF....WAVE", "audio/wav")
WORDS = [{"start": 0.1, "end": 0.5, "text": "Go"}, {"start": 0.5, "end": 1.42, "text": "forward"}]
SEGMENTS = [
    {"id": 0, "start": 0.0, "end": 1.5, "text": "Go forward"},
    {"id": 1, "start": 1.5, "end": 2.786, "text": "ten metres."},
]


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path) as running:
        yield running


async def write_down(face: Facing, claim: Claim) -> None:
    data = {"language": "en", "duration": 2.786, "segments": SEGMENTS}
    if claim.submission.input.get("timestamps") == "word":
        data["words"] = WORDS
    await face.service.end(claim, Outcome(State.SUCCEEDED, text="Go forward ten metres.", data=data))


async def answered(face: Facing, asked: Any) -> tuple[Claim, Any]:
    """Do a worker's part; return what it had to do, and the answer."""
    asking = asyncio.create_task(asked)
    claim = await face.claim()
    await write_down(face, claim)
    return claim, await asking


async def test_a_recording_needs_room_in_the_quota(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path, max_tenant_kept_bytes=len(SOUND[1]) - 1) as face, face.client() as client:
        with pytest.raises(openai.PermissionDeniedError, match="the upload has 12"):
            await client.audio.transcriptions.create(model="listener", file=SOUND)
        with pytest.raises(openai.PermissionDeniedError, match="the upload has 13"):
            await client.files.create(file=("batch.jsonl", b'{"custom_id":'), purpose="batch")
        assert list(face.service.objects.list("tenants/default/uploads/")) == []


async def test_a_transcription_is_a_job_on_an_upload(face: Facing) -> None:
    async with face.client() as client:
        made = client.audio.transcriptions.create(model="listener", file=SOUND, language="en", temperature=0.5)
        claim, answer = await answered(face, made)
    reference = claim.submission.input["audio"]
    assert reference.startswith("media://")
    assert reference.endswith("/Go_forward.wav")
    assert claim.submission.input == {"audio": reference, "language": "en", "temperature": 0.5, "task": "transcribe"}
    key = f"tenants/default/uploads/{reference.removeprefix('media://')}"
    assert b"".join(face.service.objects.read(key)) == SOUND[1]
    assert (answer.text, answer.usage.seconds, answer._request_id) == (
        "Go forward ten metres.", 3, claim.submission.key.id,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:deprecated")
async def test_a_translation_is_into_english(face: Facing) -> None:
    async with face.client() as client:
        claim, answer = await answered(face, client.audio.translations.create(model="listener", file=SOUND))
    assert claim.submission.input["task"] == "translate"
    assert answer.text == "Go forward ten metres."


async def test_the_words_come_in_the_form_that_is_asked_for(face: Facing) -> None:
    async with face.client() as client:

        async def ask(form: Any, **more: Any) -> Any:
            made = client.audio.transcriptions.create(model="listener", file=SOUND, response_format=form, **more)
            return (await answered(face, made))[1]

        verbose = await ask("verbose_json", timestamp_granularities=["segment"])
        assert (verbose.language, verbose.duration) == ("en", 2.786)
        assert [(s.id, s.start, s.end, s.text) for s in verbose.segments] == [tuple(s.values()) for s in SEGMENTS]
        assert await ask("text") == "Go forward ten metres.\n"
        assert (await ask("srt")).startswith("1\n00:00:00,000 --> 00:00:01,500\nGo forward\n\n2\n")
        assert (await ask("vtt")).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGo forward\n")


async def test_the_times_of_words_come_where_they_are_asked_for(face: Facing) -> None:
    async with face.client() as client:
        for granularities, segments in ((["word"], None), (["word", "segment"], len(SEGMENTS))):
            made = client.audio.transcriptions.create(
                model="listener", file=SOUND, response_format="verbose_json", timestamp_granularities=granularities
            )
            claim, answer = await answered(face, made)
            assert claim.submission.input["timestamps"] == "word"
            assert [(word.word, word.start, word.end) for word in answer.words] == [
                ("Go", 0.1, 0.5),
                ("forward", 0.5, 1.42),
            ]
            assert (answer.segments and len(answer.segments)) == segments


async def test_what_cannot_be_is_refused_by_name(face: Facing) -> None:
    async with face.client() as client:
        refused: list[tuple[dict[str, Any], str]] = [
            ({"prompt": "Names: Lily"}, "'prompt' is not supported"),
            ({"stream": True}, "'stream' is not supported here"),
            (
                {"timestamp_granularities": ["word"], "response_format": "srt"},
                "needs the response_format 'verbose_json'",
            ),
            ({"timestamp_granularities": ["letter"], "response_format": "verbose_json"}, "timestamp_granularities"),
            ({"response_format": "diarized_json"}, "response_format"),
            ({"temperature": 1.5}, "temperature"),
            ({"language": "English"}, "language"),
        ]
        for fields, words in refused:
            with pytest.raises(openai.BadRequestError, match=words):
                await client.audio.transcriptions.create(**{"model": "listener", "file": SOUND, **fields})
        with pytest.raises(openai.NotFoundError, match=r"not support transcription; models that do: listener"):
            await client.audio.transcriptions.create(model="writer", file=SOUND)
        with pytest.raises(openai.NotFoundError, match="known models"):
            await client.audio.transcriptions.create(model="whisper-1", file=SOUND)


async def test_a_file_that_is_no_recording_is_a_bad_request(face: Facing) -> None:
    async with face.client() as client:
        asking = asyncio.create_task(client.audio.transcriptions.create(model="listener", file=SOUND))
        claim = await face.claim()
        error = MediaUnreadable("The recording is empty: it holds no samples.").report()
        await face.service.end(claim, Outcome(State.FAILED, error=error))
        with pytest.raises(openai.BadRequestError, match="it holds no samples") as caught:
            await asking
    assert caught.value.code == "media_unreadable"
