"""Chats, completions and embeddings by OpenAI's client, with a simulated worker."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from fastapi import routing

from penstock.api.facades.errors import OPENAI_BASE, OPENAI_ROUTES
from penstock.api_keys import Scope, new_key
from penstock.errors import InvalidInput, Issue, ProcessorFailed
from penstock.jobs import State
from penstock.storage.journal.api_keys import put_key
from penstock.storage.redis.records import Outcome
from tests.support.facade_models import Facing, facing
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path) as running:
        yield running


async def test_a_chat_is_a_job_and_its_text_the_answer(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(
            client.chat.completions.create(
                model="writer", temperature=0.5, seed=-1, stop="END", max_completion_tokens=9, metadata={"who": "me"},
                messages=[
                    {"role": "developer", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
                ],
            )
        )  # fmt: skip
        claim = await face.claim()
        assert claim.submission.metadata == {"who": "me"}
        assert claim.submission.input == {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
            "temperature": 0.5, "seed": 2**63 - 1, "stop": ["END"], "max_new_tokens": 9,
        }  # fmt: skip
        await face.write(claim, "Good ", "day", reason="length")
        answer = await asked
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Good day", "length")
    assert (answer.id, answer._request_id) == (f"chatcmpl-{claim.submission.key.id}", claim.submission.key.id)
    assert (answer.object, answer.model) == ("chat.completion", "writer")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (3, 2, 5)


async def test_a_stream_tells_the_text_while_it_is_made(face: Facing) -> None:
    async with face.client() as client:
        opening = asyncio.create_task(
            client.chat.completions.create(
                model="writer", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
        )
        claim = await face.claim()
        await face.say(claim, "Good ", at=0)
        chunks = [await anext(stream := await opening), await anext(stream)]  # before the job is over
        assert (await face.job(claim.submission.key.id))["status"] == "running"
        await face.write(claim, "Good ", "day")
        chunks += [chunk async for chunk in stream]
    assert [(c.choices[0].delta.role, c.choices[0].delta.content) for c in chunks[:-1]] == [
        ("assistant", ""), (None, "Good "), (None, "day"), (None, None),
    ]  # fmt: skip
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None, None, None, "stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


async def test_a_stream_whose_text_was_made_anew_ends_with_an_error(face: Facing) -> None:
    async with face.client() as client:
        opening = asyncio.create_task(client.chat.completions.create(model="writer", messages=HELLO, stream=True))
        claim = await face.claim()
        await face.say(claim, "Good ", at=0)
        stream = await opening
        texts = [(await anext(stream)).choices[0].delta.content for _ in range(2)]
        await face.service.end(claim, Outcome(State.SUCCEEDED, text="A bad day", data={}))
        with pytest.raises(openai.APIError, match="differs from what was sent"):
            await anext(stream)
        assert texts == ["", "Good "]


async def test_closing_a_stream_cancels_the_job(face: Facing) -> None:
    async with face.client() as client:
        opening = asyncio.create_task(client.chat.completions.create(model="writer", messages=HELLO, stream=True))
        claim = await face.claim()
        await face.say(claim, "Good ", at=0)
        stream = await opening
        async with face.service.jobs.changes(claim.submission.key) as changes:
            await stream.close()
            while (await face.job(claim.submission.key.id))["status"] != "canceling":
                await changes.wait(20)


async def test_a_client_that_goes_away_has_its_job_canceled(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(client.chat.completions.create(model="writer", messages=HELLO))
        job_id = await submitted(face)
        async with face.service.jobs.changes(f"default/{job_id}") as changes:
            asked.cancel()
            while (await face.job(job_id))["status"] != "canceled":
                await changes.wait(20)


async def test_a_client_that_named_its_request_finds_the_job_again(face: Facing) -> None:
    named = {"Idempotency-Key": "mine"}
    async with face.client() as client:
        asked = asyncio.create_task(
            client.chat.completions.create(model="writer", messages=HELLO, extra_headers=named)
        )  # fmt: skip
        job_id = await submitted(face)
        asked.cancel()
        # Nothing tells of a job that nothing happens to; but the request is counted when its client has left.
        await asyncio.to_thread(wait_for, lambda: face.answered(499), "the server did not see its client leave")
        assert (await face.job(job_id))["status"] == "queued"
        again = asyncio.create_task(
            client.chat.completions.create(model="writer", messages=HELLO, extra_headers=named)
        )  # fmt: skip
        await face.write(await face.claim(), "Hi")
        assert (await again).id == f"chatcmpl-{job_id}"
        with pytest.raises(openai.UnprocessableEntityError, match="used before"):
            await client.chat.completions.create(model="writer", messages=[*HELLO, *HELLO], extra_headers=named)


async def submitted(face: Facing) -> str:
    """Return the id of the job that is submitted next."""
    await asyncio.to_thread(face.service.hints.get, timeout=20)
    [job] = (await face.service.http.get("/v1/jobs?limit=1")).json()["jobs"]
    return str(job["id"])


async def test_a_job_that_fails_is_the_clients_error_or_ours(face: Facing) -> None:
    cases = [
        (InvalidInput("The prompt has no tokens."), openai.BadRequestError, "invalid_input"),
        (ProcessorFailed("The network broke."), openai.InternalServerError, "processor_failed"),
    ]
    async with face.client(max_retries=2) as client:  # neither is repeated: that would be another job
        for number, (error, raised, code) in enumerate(cases, start=1):
            for stream in (False, True):
                asked = asyncio.create_task(
                    client.chat.completions.create(model="writer", messages=HELLO, stream=stream)
                )
                await face.service.end(await face.claim(), Outcome(State.FAILED, error=error.report()))
                with pytest.raises(raised, match=error.detail) as caught:
                    await asked
                assert (caught.value.code, caught.value.type) == (
                    code, "invalid_request_error" if number == 1 else "server_error"
                )  # fmt: skip
            assert len((await face.service.http.get("/v1/jobs")).json()["jobs"]) == 2 * number


async def test_a_job_that_somebody_cancels_is_a_conflict(face: Facing) -> None:
    async with face.client(max_retries=2) as client:
        asked = asyncio.create_task(client.chat.completions.create(model="writer", messages=HELLO))
        await face.service.http.post(f"/v1/jobs/{await submitted(face)}/cancel")
        with pytest.raises(openai.ConflictError, match="was canceled"):
            await asked


async def test_a_stream_whose_job_fails_ends_in_an_error(face: Facing) -> None:
    async with face.client() as client:
        opening = asyncio.create_task(client.completions.create(model="writer", prompt="Hello", stream=True))
        claim = await face.claim()
        await face.say(claim, "Good ", at=0)
        stream = await opening
        assert (await anext(stream)).choices[0].text == "Good "
        await face.service.end(claim, Outcome(State.FAILED, error=ProcessorFailed("The network broke.").report()))
        with pytest.raises(openai.APIError, match=r"The network broke\."):
            await anext(stream)


async def test_a_second_attempt_tells_nothing_twice(face: Facing) -> None:
    async with face.client() as client:
        opening = asyncio.create_task(client.completions.create(model="writer", prompt="Hello", stream=True))
        first = await face.claim()
        await face.say(first, "Good m", at=0)
        stream = await opening
        assert (await anext(stream)).choices[0].text == "Good m"
        await face.service.lose_lease(first.submission.key.id)
        await face.write(await face.claim(), "Good ", "morning")
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "orning"


async def test_a_completion_has_16_tokens_unless_told_and_another_seed_each_time(face: Facing) -> None:
    async with face.client() as client:
        inputs = []
        for options in ({}, {"temperature": 1}, {"temperature": 1}, {"max_tokens": 3, "stop": ["a", "b"]}):
            asked = asyncio.create_task(client.completions.create(model="writer", prompt=["Hello"], **options))
            claim = await face.claim()
            inputs.append(dict(claim.submission.input))
            await face.write(claim, " you")
            assert (await asked).choices[0].text == " you"
    assert inputs[0] == {"prompt": "Hello", "max_new_tokens": 16}
    assert inputs[1].pop("seed") != inputs[2].pop("seed")
    assert inputs[1:] == [
        {"prompt": "Hello", "max_new_tokens": 16, "temperature": 1},
        {"prompt": "Hello", "max_new_tokens": 16, "temperature": 1},
        {"prompt": "Hello", "max_new_tokens": 3, "stop": ["a", "b"]},
    ]


async def test_what_a_model_cannot_is_refused_by_name(face: Facing) -> None:
    async with face.client(max_retries=2) as client:
        chat = client.chat.completions.create
        for options, param in (
            ({"n": 2}, "n"), ({"frequency_penalty": 0.5}, "frequency_penalty"), ({"logprobs": True}, "logprobs"),
            ({"tools": [{"type": "function"}]}, "tools"), ({"temperature": 3}, "temperature"),
            ({"response_format": {"type": "json_object"}}, "response_format"), ({"stop": [""]}, "stop[0]"),
            ({"messages": [{"role": "tool", "content": "a", "tool_call_id": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
            ]}]}, "messages[0].content[0]"),
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError) as caught:
                await chat(**{"model": "writer", "messages": HELLO, **options})
            assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
        asked = asyncio.create_task(chat(model="writer", messages=HELLO, user="me", n=1, store=False, logprobs=False))
        await face.write(await face.claim(), "Hi")
        assert (await asked).choices[0].message.content == "Hi"
        with pytest.raises(openai.BadRequestError, match="send text"):
            await client.embeddings.create(model="embedder", input=[1, 2, 3])
        for prompt, said in (
            (["a", "b"], "has 2 texts; send one text per request"), ([1, 2], "send text"), ([[1]], "send text"),
        ):  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=said) as caught:
                await client.completions.create(model="writer", prompt=prompt)
            assert caught.value.param == "prompt"


async def test_a_wrong_base_url_is_told_the_right_one(face: Facing) -> None:
    for base in (face.url, f"{face.url}/v1", f"{face.url}/openai"):
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match="is under /openai/v1"):
                await client.chat.completions.create(model="writer", messages=HELLO)
        async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match="is under /openai/v1"):
                await client.responses.create(model="writer", input="Hello")
    unknown = await face.service.http.post("/v1/elsewhere")
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "Not Found.")


async def test_a_route_that_there_is_not_is_answered_with_those_that_there_are(face: Facing) -> None:
    async with face.client() as client:
        with pytest.raises(
            openai.NotFoundError, match=r"no such route; the routes below /openai/v1 are /models, "
        ) as caught:
            await client.moderations.create(model="writer", input="Hello")
        assert (caught.value.type, caught.value.code) == ("invalid_request_error", "not_found")
    # Later versions of FastAPI keep the routes of a router together.
    listed = getattr(routing, "iter_route_contexts", iter)
    paths = [route.path or "" for route in listed(face.service.app.routes)]
    ours = {path.removeprefix(OPENAI_BASE).partition("/{")[0] for path in paths if path.startswith(OPENAI_BASE)}
    assert ours == set(OPENAI_ROUTES)


async def test_a_chat_with_a_model_that_has_no_chat_template_is_told_of_completions(face: Facing) -> None:
    said = "model 'writer' has no chat template: give `prompt`"
    error = InvalidInput(said, errors=[Issue("/input/messages", said)]).report()
    async with face.client() as client:
        for options in ({}, {"stream": True}):
            asked = asyncio.create_task(client.chat.completions.create(model="writer", messages=HELLO, **options))
            await face.service.end(await face.claim(), Outcome(State.FAILED, error=error))
            with pytest.raises(openai.BadRequestError, match="POST /openai/v1/completions") as caught:
                await asked
            assert (caught.value.param, caught.value.message.count("chat template")) == ("messages", 1)


async def test_a_model_that_does_not_do_this_is_404_with_those_that_do(face: Facing) -> None:
    async with face.client() as client:
        for ask in (
            client.chat.completions.create(model="embedder", messages=HELLO),
            client.chat.completions.create(model="mapper", messages=HELLO),
        ):
            with pytest.raises(openai.NotFoundError, match=r"does not support chat; models that do: writer"):
                await ask
        with pytest.raises(openai.NotFoundError, match="does not support text embedding; models that do: embedder"):
            await client.embeddings.create(model="writer", input="a")
        with pytest.raises(
            openai.NotFoundError, match=r"no model 'gpt-5' for text completion; known models: writer \("
        ):
            await client.completions.create(model="gpt-5", prompt="a")
        with pytest.raises(openai.NotFoundError, match="no model 'gpt-5'; known models: embedder"):
            await client.models.retrieve("gpt-5")
        with pytest.raises(
            openai.NotFoundError, match="writer does not support image generation; models that do: painter"
        ):
            await client.images.generate(model="writer", prompt="a cat")
        with pytest.raises(
            openai.NotFoundError, match="writer does not support transcription; models that do: listener"
        ) as caught:
            await client.audio.transcriptions.create(model="writer", file=("a.wav", b"RIFF"))
        assert caught.value.code == "model_not_found"
        assert [model.id async for model in client.models.list()] == ["embedder", "listener", "painter", "writer"]
        assert (await client.models.retrieve("writer")).id == "writer"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("mapper")
        with pytest.raises(openai.NotFoundError):
            await client.moderations.create(model="writer", input="no such route")


async def test_embeddings_come_as_numbers_or_packed(face: Facing) -> None:
    vectors = [[0.25, -1.5, 3.0], [1e-7, 2.0, 0.1]]
    data = {"count": 2, "dimensions": 3, "embeddings": vectors, "truncated": [], "usage": {"prompt_tokens": 7}}
    async with face.client() as client:
        for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}, {"dimensions": 3}):
            asked = asyncio.create_task(client.embeddings.create(model="embedder", input=["a", "b"], **options))
            claim = await face.claim()
            assert claim.submission.input == {"texts": ["a", "b"]}
            await face.service.end(claim, Outcome(State.SUCCEEDED, data=data))
            answer = await asked
            assert [row.index for row in answer.data] == [0, 1]
            assert (answer.usage.prompt_tokens, answer.model) == (7, "embedder")
            found = [row.embedding for row in answer.data]
            if options.get("encoding_format") == "base64":
                found = [list(struct.unpack("<3f", base64.b64decode(row))) for row in found]  # type: ignore[arg-type]
            assert found == [pytest.approx(vector) for vector in vectors]
        asked = asyncio.create_task(client.embeddings.create(model="embedder", input="a", dimensions=2))
        await face.service.end(await face.claim(), Outcome(State.SUCCEEDED, data=data))
        with pytest.raises(openai.BadRequestError, match="have 3 dimensions"):
            await asked


async def test_a_text_that_had_to_be_cut_is_refused_unless_it_may_be(face: Facing) -> None:
    data = {"count": 2, "dimensions": 1, "embeddings": [[1.0], [2.0]], "truncated": [1], "usage": {"prompt_tokens": 7}}
    async with face.client() as client:
        for options in ({}, {"extra_body": {"truncate_prompt_tokens": -1}}):
            asked = asyncio.create_task(client.embeddings.create(model="embedder", input=["a", "b b"], **options))
            await face.service.end(await face.claim(), Outcome(State.SUCCEEDED, data=data))
            if options:
                assert len((await asked).data) == 2
            else:
                with pytest.raises(openai.BadRequestError, match=r"input\[1\] is longer than the context") as caught:
                    await asked
                assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


async def test_a_job_that_takes_too_long_is_504_and_goes_on(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path, facade_wait_s=0.01) as face, face.client(max_retries=2) as client:
        with pytest.raises(
            openai.InternalServerError, match="is still running; read its result with GET /v1/jobs/"
        ) as caught:
            await client.chat.completions.create(model="writer", messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (504, "wait_over")
        [job] = (await face.service.http.get("/v1/jobs")).json()["jobs"]
        assert job["status"] == "queued"


async def test_a_tenant_with_too_many_jobs_is_told_when_to_come_back_and_does(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with facing(valkey.url, tmp_path, max_tenant_jobs=1) as face:
        first = await face.service.submit()
        async with face.client() as impatient:
            with pytest.raises(openai.RateLimitError) as caught:
                await impatient.chat.completions.create(model="writer", messages=HELLO)
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        async with face.client(max_retries=1) as client:
            asked = asyncio.create_task(client.chat.completions.create(model="writer", messages=HELLO))
            await asyncio.to_thread(wait_for, lambda: face.answered(429, times=2), "the client was not refused")
            await face.service.http.post(f"/v1/jobs/{first['id']}/cancel")
            await face.write(await face.claim(), "Hi")
            assert (await asked).choices[0].message.content == "Hi"


async def test_anothers_files_are_missing(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path, access="keys") as face:
        keys = []
        for tenant in ("acme", "other"):
            record, text = new_key("of the tests", tenant=tenant, scopes=Scope, name="", created_s=1, expires_s=None)
            put_key(face.service.objects, record)
            keys.append(text)
        async with face.client(api_key=keys[0]) as mine, face.client(api_key=keys[1]) as other:
            sent = await mine.files.create(file=("a.jsonl", b"{}"), purpose="batch")
            assert [file.id async for file in mine.files.list()] == [sent.id]
            assert [file.id async for file in other.files.list()] == []
            for ask in (
                other.files.retrieve(sent.id), other.files.content(sent.id), other.files.delete(sent.id),
                other.batches.create(
                    input_file_id=sent.id, endpoint="/v1/completions", completion_window="24h"
                ),
            ):  # fmt: skip
                with pytest.raises(openai.NotFoundError, match="there is no file"):
                    await ask
            assert (await mine.files.content(sent.id)).content == b"{}"


async def test_only_keys_of_the_scope_may_ask(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with facing(valkey.url, tmp_path, access="keys") as face:
        async with face.client(api_key="psk_wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await client.models.list()
        assert caught.value.code == "invalid_api_key"
        record, text = new_key(
            "of the tests", tenant="acme", scopes=(Scope.READ,), name="", created_s=1, expires_s=None
        )
        put_key(face.service.objects, record)
        async with face.client(api_key=text) as client:
            assert (await client.models.list()).data
            with pytest.raises(openai.PermissionDeniedError, match="needs the scope submit"):
                await client.chat.completions.create(model="writer", messages=HELLO)
