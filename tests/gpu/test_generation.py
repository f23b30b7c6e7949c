"""Texts on a CUDA device: against the library on the processor."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path

import pytest
import torch
import transformers

from penstock.processors.base import Prompt
from tests.support.hub import finish, load, save, tokens
from tests.support.language import generated, new

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and a torch that uses it")

ASKED = [Prompt({"input_ids": tokens(*range(3, 3 + n)), "max_new_tokens": 20}) for n in (12, 3, 30, 7, 19, 4, 25, 9)]


@pytest.fixture(params=["Llama", "Qwen2", "Gemma2"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(7)
    small = {"vocab_size": 60, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    known = {"initializer_range": 0.5, "max_position_embeddings": 2048, "eos_token_id": None, "pad_token_id": 0}
    slides = {"head_dim": 16, "sliding_window": 6} if request.param == "Gemma2" else {}
    config = getattr(transformers, f"{request.param}Config")(**small, **heads, **known, **slides)
    return save(getattr(transformers, f"{request.param}ForCausalLM")(config), tmp_path)


def test_texts_are_those_of_the_processor(directory: Path) -> None:
    with closing(load(directory, device="cuda", max_batch=8)) as runner:
        outputs = finish(runner, *ASKED)
    assert [*map(new, outputs)] == [generated(prompt, directory, do_sample=False) for prompt in ASKED]


def test_in_bfloat16_texts_have_all_their_tokens(directory: Path) -> None:
    with closing(load(directory, device="cuda", dtype="bfloat16", max_batch=8)) as runner:
        assert [len(new(output)) for output in finish(runner, *ASKED)] == [20] * len(ASKED)


def test_nothing_stays_on_the_device(directory: Path) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    runner = load(directory, device="cuda", max_batch=8)
    finish(runner, *ASKED)
    runner.close()
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 2**20
