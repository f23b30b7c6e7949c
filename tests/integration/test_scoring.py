"""`/score`, `/rerank`, `/classify` and texts at `/pooling`, as scripts for vLLM and Cohere's clients send them."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import NotFoundError

from penstock.jobs import Claim, State
from penstock.processors.language.request import (
    TextClassificationRequest,
    TextEmbeddingRequest,
    TextRankingRequest,
)
from penstock.processors.multimodal.request import MessageEmbeddingRequest, TextImageEmbeddingRequest
from penstock.storage.redis.records import Outcome
from tests.support.facade_models import Facing, entry, facing
from tests.support.valkey import ValkeyProcess

MODELS = [
    entry("ranker", "text-ranking", TextRankingRequest),
    entry("mood", "text-classification", TextClassificationRequest),
    entry("embedder", "text-embedding", TextEmbeddingRequest),
    entry("towers", "text-image-embedding", TextImageEmbeddingRequest),
    entry("reader", "text-image-embedding", MessageEmbeddingRequest),
]
PIXEL = base64.b64encode(b"\x89PNG as good as any").decode()
USAGE = {"prompt_tokens": 9, "total_tokens": 9, "completion_tokens": 0, "prompt_tokens_details": None}


@pytest.fixture
async def face(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Facing]:
    async with facing(valkey.url, tmp_path, models=MODELS, fetch_any_public_host=True) as running:
        yield running


async def post(face: Facing, route: str, body: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as http:
        return await http.post(f"{face.url}{route}", json=body)


async def answered(face: Facing, route: str, body: Mapping[str, Any], **data: Any) -> tuple[Claim, httpx2.Response]:
    """Send a request, end its job with a result, and return the job and the answer."""
    asked = asyncio.create_task(post(face, route, dict(body)))
    claim = await face.claim()
    result = {"truncated": [], "usage": {"prompt_tokens": 9}, **data}
    await face.service.end(claim, Outcome(State.SUCCEEDED, data=result))
    return claim, await asked


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("route", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2")]
)
async def test_scores_have_vllm_s_form(face: Facing, route: str, names: tuple[str, str]) -> None:
    first, second = names
    body = {"model": "ranker", first: "what?", second: ["this", "that"], "encoding_format": "float", "priority": 0}
    claim, answer = await answered(face, route, body, scores=[0.25, 0.75], ranking=[1, 0])
    assert claim.submission.input == {"queries": "what?", "documents": ["this", "that"], "raw": False}
    said = answer.json()
    assert answer.status_code == 200
    assert said.pop("id") == f"score-{claim.submission.key.id}"
    assert isinstance(said.pop("created"), int)
    rows = [{"index": 0, "object": "score", "score": 0.25}, {"index": 1, "object": "score", "score": 0.75}]
    assert said == {"object": "list", "model": "ranker", "data": rows, "usage": USAGE}


@pytest.mark.parametrize("route", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_documents_come_back_best_first_in_cohere_s_form(face: Facing, route: str) -> None:
    body = {"model": "ranker", "query": "what?", "documents": ["a", "b", "c"], "top_n": 2, "max_tokens_per_doc": 7}
    claim, answer = await answered(face, route, body, scores=[0.25, 0.5, 0.75], ranking=[2, 1, 0])
    asked = {"queries": "what?", "documents": ["a", "b", "c"], "raw": False, "max_document_tokens": 7}
    assert claim.submission.input == asked
    assert answer.json() == {
        "id": f"score-{claim.submission.key.id}",
        "model": "ranker",
        "usage": {"prompt_tokens": 9, "total_tokens": 9},
        "results": [
            {"index": 2, "document": {"text": "c", "multi_modal": None}, "relevance_score": 0.75},
            {"index": 1, "document": {"text": "b", "multi_modal": None}, "relevance_score": 0.5},
        ],
    }


async def test_an_embedding_model_scores_by_the_cosine(face: Facing) -> None:
    body = {"model": "embedder", "text_1": "q", "text_2": ["a", "b"]}
    vectors = [[3.0, 0.0], [4.0, 4.0], [0.0, 0.5]]
    claim, answer = await answered(face, "/score", body, embeddings=vectors)
    assert claim.submission.input == {"texts": ["q", "a", "b"]}
    assert [row["score"] for row in answer.json()["data"]] == pytest.approx([0.5**0.5, 0.0])
    pairs = {**body, "text_1": ["q", "r"]}
    claim, answer = await answered(face, "/score", pairs, embeddings=[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, -2.0]])
    assert claim.submission.input == {"texts": ["q", "r", "a", "b"]}
    assert [row["score"] for row in answer.json()["data"]] == [1.0, -1.0]


LABELS = [{"id": 1, "label": "good", "score": 0.75}, {"id": 0, "label": "bad", "score": 0.25}]


async def test_classes_have_vllm_s_form(face: Facing) -> None:
    body = {"model": "mood", "input": "pleasant", "use_activation": False}
    claim, answer = await answered(face, "/classify", body, texts=[{"labels": LABELS}])
    assert claim.submission.input == {"texts": ["pleasant"], "top_k": 1000, "raw": True}
    said = answer.json()
    assert (said["object"], said["model"], said["usage"]) == ("list", "mood", USAGE)
    assert said["data"] == [{"index": 0, "label": "good", "probs": [0.25, 0.75], "num_classes": 2}]


@pytest.mark.parametrize(
    ("model", "data", "vector"),
    [
        ("mood", {"texts": [{"labels": LABELS}]}, [0.25, 0.75]),
        ("embedder", {"embeddings": [[1.0, 2.0]], "dimensions": 2}, [1.0, 2.0]),
    ],
)
async def test_pooling_of_texts_returns_vectors(face: Facing, model: str, data: Any, vector: list[float]) -> None:
    claim, answer = await answered(face, "/pooling", {"model": model, "input": "pleasant"}, **data)
    said = answer.json()
    assert (said["id"], said["object"]) == (f"pool-{claim.submission.key.id}", "list")
    assert said["data"] == [{"index": 0, "object": "pooling", "data": vector}]
    assert said["usage"] == USAGE


def message(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}


@pytest.mark.parametrize("route", ["/openai/v1/embeddings", "/pooling"])
async def test_an_image_in_a_message_is_embedded_in_the_form_of_vllm(face: Facing, route: str) -> None:
    body = {"model": "towers", "messages": message(IMAGE)}
    claim, answer = await answered(face, route, body, embeddings=[[1.0, 2.0]], dimensions=2)
    (reference,) = claim.submission.input["images"]
    assert reference.startswith("media://")
    (row,) = answer.json()["data"]
    assert row.get("embedding", row.get("data")) == [1.0, 2.0]
    by_url = {"type": "image_url", "image_url": {"url": "https://93.184.215.14/cat.png"}}
    claim, _ = await answered(face, route, {"model": "towers", "messages": message(by_url)}, embeddings=[[1.0]])
    assert claim.submission.input == {"images": ["https://93.184.215.14/cat.png"]}
    said = {"type": "text", "text": "a cat"}
    claim, _ = await answered(face, route, {"model": "towers", "messages": message(said)}, embeddings=[[1.0]])
    assert claim.submission.input == {"texts": ["a cat"]}


SAID = {"type": "text", "text": "which?"}
SYSTEM = {"role": "system", "content": [{"type": "text", "text": "Find it."}]}
EMPTY = {"role": "assistant", "content": [{"type": "text", "text": ""}]}


@pytest.mark.parametrize("route", ["/openai/v1/embeddings", "/pooling"])
async def test_a_text_and_an_image_get_one_vector_after_an_instruction(face: Facing, route: str) -> None:
    """The form in which vLLM's examples ask Qwen3-VL-Embedding: instruction, message, empty beginning of an answer."""
    body = {"model": "reader", "messages": [SYSTEM, *message(IMAGE, SAID), EMPTY], "add_generation_prompt": False}
    claim, answer = await answered(face, route, body, embeddings=[[1.0, 2.0]], dimensions=2)
    (item,) = claim.submission.input["items"]
    assert claim.submission.input == {"items": [item], "prompt": "Find it."}
    assert item[0]["image"].startswith("media://")
    assert (item[0]["type"], item[1]) == ("image", SAID)
    (row,) = answer.json()["data"]
    assert row.get("embedding", row.get("data")) == [1.0, 2.0]
    alone = {"model": "reader", "messages": [SYSTEM, *message(SAID)]}
    claim, _ = await answered(face, route, alone, embeddings=[[1.0]])
    assert claim.submission.input == {"texts": ["which?"], "prompt": "Find it."}
    named = {"model": "reader", "messages": message(IMAGE), "prompt_name": "query"}
    claim, _ = await answered(face, route, named, embeddings=[[1.0]])
    assert claim.submission.input["prompt_name"] == "query"


#: Models, messages that they refuse, further fields, and words of the answer.
NO_ITEMS: list[tuple[Any, ...]] = [
    ("towers", [SYSTEM, *message(SAID)], {}, "one message of the user with one text or image: towers embeds each"),
    ("towers", message(IMAGE, SAID), {}, "one message of the user with one text or image: towers embeds each"),
    ("reader", [*message(SAID), *message(SAID)], {}, "one message of the user, perhaps after a system message"),
    ("reader", [SYSTEM, SYSTEM, *message(SAID)], {}, "one message of the user, perhaps after a system message"),
    ("reader", [SYSTEM, EMPTY], {}, "one message of the user with one text or image"),
    ("reader", [SYSTEM, *message(SAID)], {"prompt": "So:"}, "has an instruction, and so has the request"),
]


async def test_messages_that_are_no_item_are_refused(face: Facing) -> None:
    for model, messages, more, words in NO_ITEMS:
        answer = await post(face, "/openai/v1/embeddings", {"model": model, "messages": messages, **more})
        assert answer.status_code == 400, words
        assert words in answer.json()["error"]["message"]


async def test_openai_s_client_embeds_texts_in_the_space_of_images(face: Facing) -> None:
    async with face.client() as client:
        asked = asyncio.create_task(client.embeddings.create(model="towers", input=["a cat", "a dog"]))
        claim = await face.claim()
        assert claim.submission.input == {"texts": ["a cat", "a dog"]}
        vectors = [[0.5, 0.25], [1.0, -1.0]]
        data = {"embeddings": vectors, "dimensions": 2, "truncated": [], "usage": {"prompt_tokens": 6}}
        await face.service.end(claim, Outcome(State.SUCCEEDED, data=data))
        answer = await asked
        assert [row.embedding for row in answer.data] == vectors
        assert answer.usage.prompt_tokens == 6
        with pytest.raises(
            NotFoundError, match=r"ranker does not support text embedding; .*: embedder, reader, towers"
        ):
            await client.embeddings.create(model="ranker", input="x")
        assert [model.id async for model in await client.models.list()] == ["embedder", "reader", "towers"]


@pytest.mark.parametrize(
    ("model", "cut", "said"),
    [("ranker", 1, "documents[1]"), ("embedder", 0, "queries[0]"), ("embedder", 2, "documents[1]")],
)
async def test_a_text_that_is_too_long_is_named_by_its_side(face: Facing, model: str, cut: int, said: str) -> None:
    body = {"model": model, "queries": "q", "documents": ["a", "b"]}
    found = {"scores": [0.5, 0.5]} if model == "ranker" else {"embeddings": [[1], [1], [1]]}
    _, answer = await answered(face, "/score", body, **found, truncated=[cut])
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{said} is longer than the context of {model}")


async def test_texts_that_were_cut_are_an_error_unless_asked_for(face: Facing) -> None:
    body = {"model": "ranker", "query": "q", "documents": ["long"]}
    _, answer = await answered(face, "/rerank", body, scores=[0.5], truncated=[0])
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "BadRequestError")
    assert "truncate_prompt_tokens: -1" in answer.json()["error"]["message"]
    assert answer.json()["error"]["message"].count("documents[0]") == 1
    assert answer.json()["error"]["param"] == "documents"
    _, answer = await answered(face, "/rerank", {**body, "truncate_prompt_tokens": -1}, scores=[0.5], truncated=[0])
    assert answer.status_code == 200


#: Refused requests: route, body, status, and words of the answer.
NOT_SERVED: list[tuple[Any, ...]] = [
    ("/score", {"model": "ranker", "text_1": ["a", "b"], "text_2": ["c"] * 3}, 400, "text_1 has 2 texts"),
    ("/score", {"model": "ranker", "text_1": "a"}, 400, "text_2: is required"),
    ("/score", {"model": "ranker", "data_1": "a", "data_2": [1]}, 400, "data_2[0]: must be a valid string"),
    ("/score", {"model": "mood", "text_1": "a", "text_2": "b"}, 404, "models that do: embedder, ranker"),
    ("/score", {"model": "nobody", "text_1": "a", "text_2": "b"}, 404, "known models: embedder, ranker"),
    ("/rerank", {"model": "ranker", "documents": ["a"]}, 400, "query"),
    ("/rerank", {"model": "ranker", "query": "a", "documents": []}, 400, "documents"),
    ("/rerank", {"model": "embedder", "query": "a", "documents": ["b"], "max_tokens_per_doc": 3}, 400, "embeds"),
    ("/classify", {"model": "mood", "messages": message(IMAGE)}, 400, "send texts as `input`"),
    ("/classify", {"model": "ranker", "input": "x"}, 404, "models that do: mood"),
    ("/classify", {"model": "mood", "input": [[1, 2]]}, 400, "input"),
    ("/pooling", {"model": "ranker", "input": "x"}, 404, "does not support text embedding or text classification"),
    ("/pooling", {"model": "towers", "messages": message(IMAGE, IMAGE)}, 400, "with one text or image"),
    ("/openai/v1/embeddings", {"model": "embedder", "messages": message(IMAGE)}, 400, "embeds texts alone"),
    ("/openai/v1/embeddings", {"model": "embedder"}, 400, "is required"),
    ("/openai/v1/embeddings", {"model": "towers", "input": "x", "messages": message(IMAGE)}, 400, "exclude each"),
]


async def test_requests_that_cannot_be_served_are_refused(face: Facing) -> None:
    for route, body, status, words in NOT_SERVED:
        answer = await post(face, route, body)
        assert answer.status_code == status, (words, answer.text)
        assert words in answer.json()["error"]["message"]
