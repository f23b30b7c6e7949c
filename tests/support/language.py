"""Texts that go on: prompts, what the library itself makes of them, and networks that do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer

from penstock.processors.base import Output, Prompt
from tests.support.hub import STORIES, save, tokens


def a_prompt(text: str = "", *, max_new_tokens: int = 40, **data: Any) -> Prompt:
    ids = [1, *Tokenizer.from_file(str(STORIES / "tokenizer.json")).encode(text, add_special_tokens=False).ids]
    return Prompt({"input_ids": tokens(*ids), "max_new_tokens": max_new_tokens, **data})


def new(output: Output) -> list[int]:
    found: list[int] = output.data["token_ids"]
    return found


def spoken(output: Output) -> str:
    text: str = Tokenizer.from_file(str(STORIES / "tokenizer.json")).decode(new(output))
    return text


def generated(prompt: Prompt, directory: Path = STORIES, **options: Any) -> list[int]:
    """Return the library's own continuation."""
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, local_files_only=True).eval()
    ids = torch.from_numpy(prompt.data["input_ids"])[None]
    made = network.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=prompt.data["max_new_tokens"], **options
    )
    continuation: list[int] = made[0, ids.shape[1] :].tolist()
    return continuation


def a_mistral(folder: Path) -> Path:
    config = transformers.MistralConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        sliding_window=6,
        initializer_range=0.5,
        eos_token_id=[58, 59],
    )
    return save(transformers.MistralForCausalLM(config), folder)


def a_gpt2(folder: Path, **config: Any) -> Path:
    small = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "eos_token_id": 59}
    made = transformers.GPT2Config(**{**small, "initializer_range": 0.5, **config})
    return save(transformers.GPT2LMHeadModel(made), folder)
