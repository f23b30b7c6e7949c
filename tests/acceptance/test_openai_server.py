"""The queue before a server that speaks OpenAI's protocol: real processes, and a server that fails or goes away."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from tests.support import openai_server as fakes
from tests.support.openai_server import FakeServer
from tests.support.polling import wait_for
from tests.support.stack import Stack, free_port, running

CONFIG = """
models = ["{models}"]
slots = 12
"""
MODELS = """
[models.llama]
title = "A model at a server"
runner = "openai-server"
processor = "openai-chat"
source = "http://127.0.0.1:{port}/v1"
revision = "1"
options = {{ model = "tiny", concurrency = 8, api_key_variable = "LLAMA_KEY", timeout_s = 5, pass = ["top_k"] }}

[models.words]
title = "Completions"
runner = "openai-server"
processor = "openai-completion"
source = "http://127.0.0.1:{port}/v1"
revision = "1"
options = {{ model = "tiny", api_key_variable = "LLAMA_KEY" }}

[models.vectors]
title = "Embeddings"
runner = "openai-server"
processor = "openai-embedding"
source = "http://127.0.0.1:{port}/v1"
revision = "1"
options = {{ model = "tiny", api_key_variable = "LLAMA_KEY" }}
"""
KEY = "sk-of-the-server"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.breadth]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with FakeServer(key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, server: FakeServer) -> Iterator[Stack]:
    with started(tmp_path_factory.mktemp("queue"), server.port) as stack:
        ready(stack)
        yield stack


@pytest.fixture
def client(stack: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stack.url}/openai/v1", api_key="none", max_retries=0) as client:
        yield client


def started(data: Path, port: int) -> Any:
    (data / "models.toml").write_text(MODELS.format(port=port))
    return running(data / "up", config=CONFIG.format(models=data / "models.toml"), LLAMA_KEY=KEY)


def ready(stack: Stack, *, is_ready: bool = True) -> None:
    with stack.client() as client:
        wait_for(lambda: client.model("llama").ready is is_ready, f"the model's readiness did not become {is_ready}")


def noted(stack: Stack) -> str | None:
    """Return the reason why the model's jobs wait."""
    note: str | None = httpx2.get(f"{stack.url}/v1/models/llama").json()["note"]
    return note


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_openais_client_gets_a_stream_that_the_server_is_still_writing(client: OpenAI, server: FakeServer) -> None:
    server.gate.clear()
    usage: Any = {"include_usage": True}
    stream = client.chat.completions.create(
        model="llama", messages=said("Once upon a time"), stream=True, stream_options=usage, extra_body={"top_k": 3}
    )  # fmt: skip
    text = ""
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        if text == "Once":
            server.gate.set()
    assert text == "Once upon a time"
    assert chunk.usage is not None
    assert (chunk.usage.prompt_tokens, chunk.usage.completion_tokens) == (4, 4)
    sent = server.bodies[-1]
    assert (sent["model"], sent["top_k"], sent["messages"]) == ("tiny", 3, said("Once upon a time"))


def test_everything_of_an_answer_comes_through(client: OpenAI, server: FakeServer) -> None:
    answer = client.chat.completions.create(model="llama", messages=said("a b"), n=2, logprobs=True, temperature=0)
    assert [choice.message.content for choice in answer.choices] == ["a b", "A B"]
    assert answer.choices[1].logprobs is not None
    assert [entry.token for entry in answer.choices[1].logprobs.content or ()] == ["A", " B"]
    server.plans.append(fakes.call_tool)
    [call] = (
        client.chat.completions.create(model="llama", messages=said("add"), tools=TOOLS).choices[0].message.tool_calls
        or ()
    )
    assert (call.id, call.type == "function" and call.function.arguments) == ("call_1", '{"a": 1}')
    server.plans.append(fakes.call_tool)
    chunks = list(client.chat.completions.create(model="llama", messages=said("add"), tools=TOOLS, stream=True))
    [piece] = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert piece.function is not None
    assert (piece.index, piece.function.name, piece.function.arguments) == (0, "add", '{"a": 1}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    follow = [*said("add"), {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
              {"role": "tool", "tool_call_id": "call_1", "content": "3"}]  # fmt: skip
    schema: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": {"type": "object"}}}
    answered: Any = client.chat.completions.create(model="llama", messages=follow, response_format=schema)  # type: ignore[call-overload]
    assert answered.choices[0].message.content == "3"
    assert server.bodies[-1]["response_format"] == schema


def test_images_and_recordings_reach_the_server_as_data(
    client: OpenAI, server: FakeServer, stack: Stack, tmp_path: Path
) -> None:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    sound = base64.b64encode(b"RIFF\0\0\0\0WAVEdata").decode()
    parts: Any = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "text", "text": "What is this?"},
    ]
    answer = client.chat.completions.create(model="llama", messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == "What is this?"
    assert server.bodies[-1]["messages"][0]["content"] == parts
    (tmp_path / "photo.png").write_bytes(PNG)
    with stack.client() as native:
        job = native.wait(native.submit("llama", {"prompt": "And this?"}, files={"images": tmp_path / "photo.png"}).id)
    assert (job.succeeded, job.text) == (True, "And this?"), job.error
    assert server.bodies[-1]["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": url}}


def test_completions_and_embeddings_go_on_too(client: OpenAI) -> None:
    done = client.completions.create(model="words", prompt="to be or", max_tokens=5)
    assert (done.choices[0].text, done.choices[0].finish_reason) == ("to be or", "stop")
    streamed = [
        chunk.choices[0].text for chunk in client.completions.create(model="words", prompt="to be", stream=True)
    ]
    assert "".join(streamed) == "to be"
    made = client.embeddings.create(model="vectors", input=["a", "bbb"], encoding_format="float")
    assert [row.embedding for row in made.data] == [[1.0, 1.5], [3.0, 1.5]]
    assert made.usage.prompt_tokens == 2


def test_unknown_parameters_and_refused_requests_are_errors_in_words(client: OpenAI, server: FakeServer) -> None:
    with pytest.raises(openai.BadRequestError, match="min_p"):
        client.chat.completions.create(model="llama", messages=said("hi"), extra_body={"min_p": 0.1})
    server.plans.append(fakes.status(400, "maximum context length is 4 tokens"))
    with pytest.raises(openai.BadRequestError, match="answered 400: maximum context length is 4 tokens"):
        client.chat.completions.create(model="llama", messages=said("hi"))


def test_eight_jobs_reach_the_server_together_and_no_more(stack: Stack, server: FakeServer) -> None:
    server.peak = 0
    server.gate.clear()
    with stack.client() as client:
        jobs = [client.submit("llama", {"prompt": f"job {number}"}).id for number in range(12)]
        server.wait_for_active(8)
        wait_for(lambda: sum(client.job(job).status == "running" for job in jobs) == 12, "not all jobs run")
        server.gate.set()
        assert [client.wait(job).text for job in jobs] == [f"job {number}" for number in range(12)]
    assert server.peak == 8


def test_a_canceled_job_closes_its_stream_at_the_server(stack: Stack, server: FakeServer) -> None:
    server.gate.clear()
    with stack.client() as client:
        job = client.submit("llama", {"prompt": "too long"}).id
        server.wait_for_active(1)
        client.cancel(job)
        assert server.left.acquire(timeout=20)
        assert client.wait(job).status == "canceled"
    server.wait_for_active(0)
    server.gate.set()


def test_a_batch_goes_on_line_by_line(client: OpenAI) -> None:
    body = {"model": "llama", "messages": said("of a batch"), "logprobs": True}
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    wait_for(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch did not end")
    ended = client.batches.retrieve(batch.id)
    assert ended.output_file_id is not None, ended
    [row] = client.files.content(ended.output_file_id).text.splitlines()
    choice = json.loads(row)["response"]["body"]["choices"][0]
    assert choice["message"]["content"] == "of a batch"
    assert choice["logprobs"]["content"][0]["token"] == "of"


def test_a_killed_worker_loses_no_job(stack: Stack, server: FakeServer) -> None:
    server.gate.clear()
    with stack.client() as client:
        jobs = [client.submit("llama", {"prompt": f"survivor {number}"}).id for number in range(4)]
        server.wait_for_active(4)
        stack.kill("worker")
        server.wait_for_active(0)
        server.gate.set()
        ended = [client.wait(job) for job in jobs]
    assert [(job.text, job.attempt) for job in ended] == [(f"survivor {number}", 2) for number in range(4)]


def test_jobs_outlive_a_restart_of_the_server_and_no_key_is_written_down(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, port) as stack, stack.client() as client:  # the server is not there yet
        wait_for(lambda: "does not answer" in (noted(stack) or ""), "the model does not say why it waits")
        early = client.submit("llama", {"prompt": "early bird"}).id
        with FakeServer(port=port, key=KEY) as server:
            assert client.wait(early).text == "early bird"
            server.gate.clear()
            halfway = client.submit("llama", {"prompt": "half way"}).id
            server.wait_for_active(1)
            wait_for(lambda: any(e.type == "job.text" for e in client.event_list(halfway)), "no text was told")
        ready(stack, is_ready=False)
        late = client.submit("llama", {"prompt": "late one"}).id
        with FakeServer(port=port, key=KEY):
            for job, text in ((halfway, "half way"), (late, "late one")):
                ended = client.wait(job)
                assert (ended.text, ended.error) == (text, None)
                assert ended.attempt <= 2
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"server.away" in written
    assert KEY.encode() not in written


def test_a_stream_that_breaks_is_asked_again_and_the_text_goes_on(stack: Stack, server: FakeServer) -> None:
    server.plans.append(fakes.cut)
    with stack.client() as client:
        job = client.submit("llama", {"prompt": "cut in two"}).id
        told = "".join(event.data["text"] for event in client.events(job) if event.type == "job.text")
        assert (client.job(job).text, told, client.job(job).attempt) == ("cut in two", "cut in two", 1)


def test_many_tenants_and_threads_get_their_own_answers(client: OpenAI) -> None:
    def ask(number: int) -> str:
        answer = client.chat.completions.create(model="llama", messages=said(f"answer {number} of many"))
        return answer.choices[0].message.content or ""

    barrier = threading.Barrier(10)
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda number: (barrier.wait(30), ask(number))[1], range(10)))
    assert found == [f"answer {number} of many" for number in range(10)]
