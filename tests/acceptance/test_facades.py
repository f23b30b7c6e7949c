"""The clients that people have on a whole running system: OpenAI's package, and a script for vLLM's `/pooling`."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from hashlib import sha256
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.support.hub import STORIES, minilm, needs_stories
from tests.support.polling import wait_for
from tests.support.stack import Stack, running, scene
from tests.support.web_server import in_thread

CONFIG = """
models = ["models.toml"]
allowed_hosts = ["127.0.0.1:{port}"]
max_body_bytes = 20_000_000
"""
MODELS = """
[models.minilm]
title = "Sentence embeddings"
runner = "transformers"
processor = "text-embedding"
source = "{minilm}"
revision = "0.1.0"
max_batch = 32

[models.stories]
title = "Short stories"
runner = "transformers"
processor = "text-generation"
source = "{stories}"
revision = "1"
max_batch = 8
"""
#: The words of the last message: stories260k was trained on no conversations.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
PROMPT = "Once upon a time, Lily"
SEN1FLOODS = "ibm-nasa-geospatial/Prithvi-EO-2.0-300M-TL-Sen1Floods11"
#: In the spirit of vLLM's example for IO processors: what it posts and how it reads the answer.
SCRIPT = """
import base64, sys
import requests

endpoint, image_url, model, out_path = sys.argv[1:]
payload = {
    "data": {"data": image_url, "data_format": "url", "image_format": "tiff", "out_data_format": "b64_json"},
    "priority": 0,
    "model": model,
    "softmax": False,
}
answer = requests.post(endpoint, json=payload)
print(answer.status_code, answer.reason)
with open(out_path, "wb") as file:
    file.write(base64.b64decode(answer.json()["data"]["data"]))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.breadth]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Return a web server's address and its folder."""
    folder = tmp_path_factory.mktemp("images")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    with in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}", folder


@pytest.fixture(scope="module")
def facade(tmp_path_factory: pytest.TempPathFactory, images: tuple[str, Path]) -> Iterator[Stack]:
    """Return a running system with models of text, and csmask under the name of the model that a script asks for."""
    data = tmp_path_factory.mktemp("facade")
    stories = data / "stories"
    shutil.copytree(STORIES, stories)
    (stories / "chat_template.jinja").write_text(TEMPLATE)
    models = MODELS.format(minilm=minilm(), stories=stories)
    (data / "models.toml").write_text(models + aliased_csmask())
    config = CONFIG.format(port=images[0].rpartition(":")[2]).replace("models.toml", str(data / "models.toml"))
    with running(data / "up", config=config) as stack:
        with stack.client() as client:
            wait_for(lambda: {"minilm", "stories"} <= {m.name for m in client.models() if m.ready}, "no models")
        yield stack


def aliased_csmask() -> str:
    """Return the shipped record of csmask with an alias."""
    shipped = (Path(__file__).parents[2] / "src" / "penstock" / "catalogue" / "models.toml").read_text()
    return shipped.replace("[models.csmask]\n", f'[models.csmask]\naliases = ["{SEN1FLOODS}"]\n', 1)


@pytest.fixture
def client(facade: Stack) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{facade.url}/openai/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_script_for_pooling_works_by_changing_the_host(
    facade: Stack, images: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = images
    shutil.copy(scene(), folder / "betsiboka.tiff")
    out = tmp_path / "prediction.tiff"
    command = [sys.executable, "-c", SCRIPT, f"{facade.url}/pooling", f"{url}/betsiboka.tiff", SEN1FLOODS, str(out)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=240)
    assert done.stdout == "200 OK\n"
    with facade.client() as native:
        job = native.wait(native.submit("csmask", {"outputs": ["classes"]}, files={"scene": scene()}).id)
        assert job.succeeded, job.error
        native.download(job, tmp_path / "native")
        assert [done.model for done in native.jobs().jobs] == ["csmask", "csmask"]
    assert digest(out) == digest(tmp_path / "native" / "classes.tif")


def test_a_scene_in_the_request_gives_the_same_bytes(facade: Stack, tmp_path: Path) -> None:
    data = {"data": base64.b64encode(scene().read_bytes()).decode(), "data_format": "b64_json"}
    body = {"model": SEN1FLOODS, "data": {**data, "out_data_format": "b64_json"}}
    answer = httpx2.post(f"{facade.url}/pooling", json=body, timeout=240)
    assert answer.status_code == 200, answer.text[:500]
    made = base64.b64decode(answer.json()["data"]["data"])
    with facade.client() as native:
        job = native.wait(native.submit("csmask", {"outputs": ["classes"]}, files={"scene": scene()}).id)
        native.download(job, tmp_path)
    assert sha256(made).hexdigest() == digest(tmp_path / "classes.tif")


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@needs_stories
def test_a_story_is_the_same_however_it_is_asked_for(facade: Stack, client: OpenAI) -> None:
    with facade.client() as native:
        wanted = native.wait(native.submit("stories", {"prompt": PROMPT, "max_new_tokens": 40}).id)
    assert wanted.text
    completion = client.completions.create(model="stories", prompt=PROMPT, max_tokens=40)
    chat = client.chat.completions.create(
        model="stories", messages=[{"role": "user", "content": PROMPT}], max_completion_tokens=40
    )
    assert completion.choices[0].text == wanted.text
    assert chat.choices[0].message.content
    assert (completion.choices[0].finish_reason, completion.usage.completion_tokens) == ("length", 40)  # type: ignore[union-attr]
    chunks = list(client.completions.create(model="stories", prompt=PROMPT, max_tokens=40, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == wanted.text
    assert chunks[-1].choices[0].finish_reason == "length"
    stopped = client.completions.create(model="stories", prompt=PROMPT, max_tokens=40, stop=".")
    assert stopped.choices[0].text == wanted.text.partition(".")[0]
    assert stopped.choices[0].finish_reason == "stop"
    seeded = [
        client.completions.create(model="stories", prompt=PROMPT, temperature=1.0, seed=seed).choices[0].text
        for seed in (1, 1, 2)
    ]
    assert seeded[0] == seeded[1] != seeded[2]


@needs_stories
def test_closing_a_stream_cancels_its_job(facade: Stack, client: OpenAI) -> None:
    ended = []
    while "canceled" not in ended and len(ended) < 10:  # the whole text may be made before it is closed
        with client.completions.create(model="stories", prompt=PROMPT, max_tokens=480, stream=True) as stream:
            first = next(iter(stream))
        with facade.client() as native:
            ended.append(native.wait(first.id.removeprefix("cmpl-")).status)
    assert ended[-1] == "canceled", ended


@needs_stories
def test_many_at_once_by_the_async_client(facade: Stack) -> None:
    async def ask() -> list[str]:
        async with AsyncOpenAI(base_url=f"{facade.url}/openai/v1", api_key="none") as client:
            asked = (
                client.chat.completions.create(model="stories", messages=[{"role": "user", "content": PROMPT}], seed=n)
                for n in range(8)
            )
            return [answer.choices[0].message.content or "" for answer in await asyncio.gather(*asked)]

    texts = asyncio.run(ask())
    assert len(texts) == 8
    assert len(set(texts)) == 1  # without a temperature the likeliest words are taken


def test_sentences_of_one_meaning_lie_closer(client: OpenAI) -> None:
    sentences = ["A cat sits on the mat.", "A kitten is sitting on a rug.", "The stock market fell on Monday."]
    answer = client.embeddings.create(model="minilm", input=sentences)
    cat, kitten, market = (row.embedding for row in answer.data)
    assert len(cat) == 384
    assert answer.usage.prompt_tokens > 15
    assert dot(cat, kitten) > dot(cat, market) + 0.3
    plain = client.embeddings.create(model="minilm", input=sentences[0], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(cat, abs=1e-5)


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


@needs_stories
def test_what_is_wrong_raises_the_packages_own_errors(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-5", prompt=PROMPT)
    with pytest.raises(openai.BadRequestError, match="the model takes 512 in total") as caught:
        client.completions.create(model="stories", prompt=PROMPT, max_tokens=5000)
    assert caught.value.code == "invalid_input"


@needs_stories
def test_a_file_of_requests_becomes_a_file_of_answers(facade: Stack, client: OpenAI, tmp_path: Path) -> None:
    rows = [request(f"story {n}", prompt=PROMPT, max_tokens=5 + n) for n in range(5)]
    rows.insert(2, request("too long", prompt=PROMPT, max_tokens=5000))
    source = tmp_path / "requests ä.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    with source.open("rb") as file:
        sent = client.files.create(file=file, purpose="batch")
    assert (sent.bytes, sent.purpose, sent.status) == (source.stat().st_size, "batch", "processed")
    assert client.files.content(sent.id).read() == source.read_bytes()
    assert sent.id in [file.id for file in client.files.list()]
    made = client.batches.create(
        input_file_id=sent.id, endpoint="/v1/completions", completion_window="24h", metadata={"why": "test"}
    )
    assert made.status in ("in_progress", "completed")
    with facade.client() as native:
        native.wait_batch(native_id(made.id))
    over = client.batches.retrieve(made.id)
    assert (over.status, over.metadata, over.input_file_id) == ("completed", {"why": "test"}, sent.id)
    assert over.request_counts is not None
    assert (over.request_counts.total, over.request_counts.completed, over.request_counts.failed) == (6, 5, 1)
    assert made.id in [batch.id for batch in client.batches.list(limit=1)]

    assert over.output_file_id
    output = client.files.content(over.output_file_id).read()
    assert client.files.retrieve(over.output_file_id).bytes == len(output)
    answers = [json.loads(row) for row in output.splitlines()]
    assert [row["custom_id"] for row in answers] == [f"story {n}" for n in range(5)]
    for number, row in enumerate(answers):
        alone = client.completions.create(model="stories", prompt=PROMPT, max_tokens=5 + number)
        body = row["response"]["body"]
        assert row["response"]["status_code"] == 200
        assert body["choices"] == alone.model_dump()["choices"]
        assert body["usage"]["completion_tokens"] == 5 + number
    assert over.error_file_id
    [wrong] = [json.loads(row) for row in client.files.content(over.error_file_id).read().splitlines()]
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("too long", 400)
    assert "the model takes 512 in total" in wrong["response"]["body"]["error"]["message"]

    assert client.files.delete(sent.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(sent.id)
    with pytest.raises(openai.ConflictError, match="deleted with its batch"):
        client.files.delete(over.output_file_id)


def test_embeddings_in_a_batch_come_as_they_were_asked_for(facade: Stack, client: OpenAI) -> None:
    bodies = [{"encoding_format": "base64"}, {}, {"dimensions": 5}]
    rows = [
        {"custom_id": str(n), "method": "POST", "url": "/v1/embeddings",
         "body": {"model": "minilm", "input": ["a cat", "a dog"], **body}}
        for n, body in enumerate(bodies)
    ]  # fmt: skip
    sent = client.files.create(file=("r.jsonl", "\n".join(map(json.dumps, rows)).encode()), purpose="batch")
    made = client.batches.create(input_file_id=sent.id, endpoint="/v1/embeddings", completion_window="1h")
    with facade.client() as native:
        native.wait_batch(native_id(made.id))
    output = client.files.content(client.batches.retrieve(made.id).output_file_id or "").read()
    packed, plain, wrong = (json.loads(row)["response"] for row in output.splitlines())
    assert len(base64.b64decode(packed["body"]["data"][1]["embedding"])) == 384 * 4
    assert len(plain["body"]["data"][0]["embedding"]) == 384
    assert (wrong["status_code"], wrong["body"]["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["no json"], "line 1: the body is not JSON"),
        ([{"custom_id": "a"}], "line 1: .*is required"),
        (["OK", "", "OK"], "line 3: the custom_id 'a' is not unique"),
        (
            ["OK", {"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": {}}],
            "line 2: the url .* is not the batch",
        ),
        (["OK", {"custom_id": "b", "method": "POST", "url": "/v1/completions",
                 "body": {"model": "stories", "prompt": "a", "n": 3}}], "line 2: 'n' is not supported"),
        ([""], "the file has no lines"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_batch_is_refused_with_the_line(client: OpenAI, rows: list[Any], said: str) -> None:
    fine = json.dumps(request("a", prompt="a"))
    text = "\n".join(fine if row == "OK" else row if isinstance(row, str) else json.dumps(row) for row in rows)
    sent = client.files.create(file=("r.jsonl", text.encode() or b"\n"), purpose="batch")
    with pytest.raises(openai.BadRequestError, match=said):
        client.batches.create(input_file_id=sent.id, endpoint="/v1/completions", completion_window="24h")


def test_files_and_batches_that_are_not_there(client: OpenAI) -> None:
    for ask in (
        lambda: client.files.retrieve("file-none"),
        lambda: client.files.content(f"file-output-{'0' * 32}"),
        lambda: client.batches.retrieve(f"batch_{'0' * 32}"),
        lambda: client.batches.create(input_file_id="file-x", endpoint="/v1/completions", completion_window="24h"),
    ):
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a.jsonl", b"{}"), purpose="fine-tune")


def request(custom_id: str, **body: Any) -> dict[str, Any]:
    """Return a line of a batch."""
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"model": "stories", **body}}


def native_id(batch_id: str) -> str:
    """Return a batch's id in the API of our own."""
    return str(uuid.UUID(batch_id.removeprefix("batch_")))
