"""Texts that begin with embeddings: those of a text's tokens give what the text gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.intake.local_media import LocalMedia
from penstock.intake.media import upload_key
from penstock.models import CatalogueEntry, tensor_places
from penstock.processors.base import Prompt
from penstock.processors.language.generation import TextGeneration
from penstock.processors.registry import Registry, export
from penstock.storage.redis import catalogues
from penstock.workers.engine.base import Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Processed, Work
from tests.support.engine_jobs import never
from tests.support.hub import STORIES, a_model, finish, load, needs_stories, save, tokens
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

pytestmark = pytest.mark.library

STORY = a_model(STORIES, processor="text-generation")


@pytest.fixture(scope="module")
def stories() -> Iterator[Runner]:
    with closing(load(STORIES)) as runner:
        yield runner


def embedded(source: Path, *ids: int) -> torch.Tensor:
    """Return the vectors that a network's own table has for tokens."""
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(source, local_files_only=True)
    vectors: torch.Tensor = network.get_input_embeddings()(torch.tensor(ids)).detach()
    return vectors


def both_ways(source: Path, *ids: int, **wish: Any) -> tuple[Prompt, Prompt]:
    """Return the same beginning as tokens and as their embeddings."""
    wish = {"max_new_tokens": 20, **wish}
    return Prompt({"input_ids": tokens(*ids), **wish}), Prompt(
        {"inputs_embeds": embedded(source, *ids).numpy(), **wish}
    )


@needs_stories
@pytest.mark.parametrize("wish", [{}, {"temperature": 1.0, "seed": 5}])
def test_the_embeddings_of_a_text_have_its_tokens(stories: Runner, wish: dict[str, Any]) -> None:
    asked, same = both_ways(STORIES, 1, 403, 407, 261, 378, **wish)
    first, second = finish(stories, asked, same)
    assert first.data == second.data
    assert len(first.data["token_ids"]) == 20


def a_gpt2(folder: Path) -> Path:
    config = transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=64, eos_token_id=59)
    return save(transformers.GPT2LMHeadModel(config), folder)


def an_opt(folder: Path) -> Path:
    """Its tokens' vectors are shorter than its layers."""
    config = transformers.OPTConfig(
        vocab_size=60, hidden_size=16, word_embed_proj_dim=8, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=59,
    )  # fmt: skip
    return save(transformers.OPTForCausalLM(config), folder)


@pytest.mark.parametrize("made", [a_gpt2, an_opt])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_other_networks_and_dtypes_too(tmp_path: Path, made: Callable[[Path], Path], dtype: str) -> None:
    torch.manual_seed(7)
    directory = made(tmp_path)
    with closing(load(directory, dtype=dtype)) as runner:
        first, second = finish(runner, *both_ways(directory, 3, 4, 5, 6, 7))
    assert first.data == second.data


@needs_stories
@pytest.mark.parametrize(
    ("embeds", "kind", "sentence"),
    [
        (None, ProcessorFailed, "takes `inputs_embeds`, a float32 array"),
        (np.zeros((3, 64)), ProcessorFailed, "takes `inputs_embeds`, a float32 array"),
        (np.zeros((1, 3, 64), np.float32), ProcessorFailed, "takes `inputs_embeds`, a float32 array"),
        (np.zeros((3, 63), np.float32), InvalidInput, r"\(tokens, 64\), the prompt has \(3, 63\)"),
        (np.zeros((0, 64), np.float32), InvalidInput, r"\(tokens, 64\), the prompt has \(0, 64\)"),
        (np.zeros((513, 64), np.float32), InvalidInput, "at most 512 tokens, the prompt has 513"),
        (np.zeros((500, 64), np.float32), InvalidInput, "the prompt has 500 and 20 more are asked for"),
    ],
)
def test_the_runner_lets_nothing_into_a_batch_that_does_not_fit(
    stories: Runner, embeds: Any, kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        stories.admit(Prompt({"inputs_embeds": embeds, "max_new_tokens": 20}))


@needs_stories
def test_numbers_that_no_network_was_made_for_spoil_no_other_text(stories: Runner) -> None:
    asked, _ = both_ways(STORIES, 1, 403)
    wild = np.full((4, 64), 3e38, np.float32)
    wishes = ({}, {"temperature": 1.0, "seed": 1})
    strange = [Prompt({"inputs_embeds": wild, "max_new_tokens": 20, **wish}) for wish in wishes]
    assert finish(stories, asked, *strange)[0].data == finish(stories, asked)[0].data


def run(pool: IOPool, engine: BatchingEngine, folder: Path, file: Path | None, **asked: Any) -> Processed:
    media = {} if file is None else {"media://e": LocalMedia(file)}
    with pool.open(Work(STORY, asked, media, folder), check=never, say=lambda _: None) as session:
        return session.finish(engine.run(STORY, session.prepared.prompts, check=never))


@pytest.mark.breadth
@needs_stories
def test_through_an_io_process_the_text_is_that_of_the_prompt(tmp_path: Path) -> None:
    text = "Once upon a time, there was a little"
    ids = Tokenizer.from_file(str(STORIES / "tokenizer.json")).encode(text).ids
    save_file({"prompt": embedded(STORIES, *ids)}, tmp_path / "prompt.safetensors")
    np.save(tmp_path / "wrong.npy", np.zeros((3, 65), np.float32))
    options = ForkOptions(
        2**30, processors={"text-generation": f"{TextGeneration.__module__}:{TextGeneration.__name__}"}
    )
    with closing(IOPool(1, options)) as pool, closing(BatchingEngine(Runners.installed())) as engine:
        with pytest.raises(InvalidInput, match=r"\(tokens, 64\), not float32 \(3, 65\)"):
            run(pool, engine, tmp_path / "a", tmp_path / "wrong.npy", prompt_embeds="media://e")
        first = run(pool, engine, tmp_path / "b", None, prompt=text, max_new_tokens=30).result
        second = run(
            pool, engine, tmp_path / "c", tmp_path / "prompt.safetensors", prompt_embeds="media://e", max_new_tokens=30
        ).result
    assert first.text is not None
    assert second.text == first.text.lstrip()
    assert second.data == first.data


@pytest.fixture
def entry() -> CatalogueEntry:
    return export(Registry.imported(), STORY)


@needs_stories
class TestWhoMaySend:
    @pytest.fixture(params=[False, True])
    async def service(
        self, valkey: ValkeyProcess, tmp_path: Path, entry: CatalogueEntry, request: pytest.FixtureRequest
    ) -> AsyncIterator[Service]:
        async with serving(valkey.url, tmp_path, raw_tensors=request.param) as service:
            await service.jobs.run(catalogues.publish([entry], worker="v", queues=["default"], alive_s=600))
            key = upload_key("default", "up", "in.npy")
            service.objects.put_bytes(key, b"x", content_type="application/octet-stream")
            yield service

    async def test_embeddings_are_for_tenants_with_the_right(self, service: Service) -> None:
        body = {"model": "tiny", "input": {"prompt_embeds": "media://up/in.npy"}}
        response = await service.http.post("/v1/jobs", json=body)
        if service.settings.takes_tensors("default"):
            assert response.status_code == 202
            return
        problem = assert_problem(response, 403, "tensors_refused")
        assert problem["errors"] == [{"pointer": "/input/prompt_embeds", "detail": "is a raw tensor"}]

    async def test_texts_are_for_everybody(self, service: Service) -> None:
        response = await service.http.post("/v1/jobs", json={"model": "tiny", "input": {"prompt": "Once"}})
        assert response.status_code == 202


@needs_stories
def test_only_the_field_with_embeddings_is_marked(entry: CatalogueEntry) -> None:
    assert entry.problem is None
    assert list(tensor_places(entry.input_schema, {"prompt_embeds": "media://a/b"})) == ["/prompt_embeds"]
    assert list(tensor_places(entry.input_schema, {"prompt": "a"})) == []
