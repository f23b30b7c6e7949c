"""Prompt embeddings: valid ones reach the network bit by bit, others are rejected first."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import save
from safetensors.torch import save as save_torch
from tokenizers import Tokenizer

from penstock.errors import InvalidInput, MediaUnreadable
from penstock.models import Limits
from penstock.processors.base import Output, Prompt
from penstock.processors.language.generation import TextGeneration, embedding_width, read_prompt_embeddings
from penstock.processors.testing import FolderSink, LocalFiles, check_processor
from tests.support.model_directories import bytes_directory, make_model

WIDTH = 4


def generator(tmp_path: Path, *, max_tokens: int = 20) -> TextGeneration:
    folder = bytes_directory(tmp_path / "m", max_tokens=max_tokens)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": WIDTH}))
    return TextGeneration(make_model(folder, "text-generation"))


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def a_file(folder: Path, contents: bytes) -> Path:
    (folder / "embeds").write_bytes(contents)
    return folder / "embeds"


def says_ab(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output({"token_ids": [64, 65], "finish_reason": "stop"}) for _ in prompts)


def prompt_of(processor: TextGeneration, path: Path, **more: Any) -> Prompt:
    request = processor.request.model_validate({"prompt_embeds": "media://e", **more})
    return next(processor.pre_process(request, LocalFiles({"media://e": path})).prompts)


def test_a_request_with_embeddings_is_answered_and_they_count_as_tokens(tmp_path: Path) -> None:
    files = {"media://e": a_file(tmp_path, npy(numbers(3, WIDTH)))}
    done = check_processor(
        generator(tmp_path), {"prompt_embeds": "media://e"}, files, engine=says_ab, other={"prompt": "a"},
        limits=Limits(),
    )  # fmt: skip
    assert (done.result.data or {})["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@pytest.mark.parametrize("form", ["npy", "big-endian", "float16", "safetensors", "bfloat16"])
def test_the_network_gets_the_file_s_numbers_as_float32(tmp_path: Path, form: str) -> None:
    embeds = numbers(5, WIDTH)
    rounded = {
        "float16": embeds.astype(np.float16).astype(np.float32),
        "bfloat16": torch.from_numpy(embeds).bfloat16().float().numpy(),
    }
    contents = {
        "npy": npy(embeds),
        "big-endian": npy(embeds.astype(">f4")),
        "float16": npy(embeds.astype(np.float16)),
        "safetensors": save({"any name": embeds}),
        "bfloat16": save_torch({"x": torch.from_numpy(embeds).bfloat16()}),
    }[form]
    prompt = prompt_of(generator(tmp_path), a_file(tmp_path, contents), max_new_tokens=7, seed=3)
    found = prompt.data["inputs_embeds"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, rounded.get(form, embeds))
    assert prompt.cost == 12
    assert {name: value for name, value in prompt.data.items() if name != "inputs_embeds"} == {
        "max_new_tokens": 7, "temperature": 0, "top_p": 1, "seed": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (npy(numbers(3, 5)), r"float32, float16, bfloat16 \(tokens, 4\), not float32 \(3, 5\)"),
        (npy(numbers(1, 3, WIDTH)), r"\(tokens, 4\), not float32 \(1, 3, 4\)"),
        (npy(numbers(WIDTH)), r"not float32 \(4,\)"),
        (npy(np.zeros((3, WIDTH))), r"not float64 \(3, 4\)"),
        (npy(np.zeros((3, WIDTH), np.int64)), r"not int64 \(3, 4\)"),
        (npy(numbers(0, WIDTH)), "of 1 to 20 tokens, not of 0"),
        (npy(numbers(21, WIDTH)), "of 1 to 20 tokens, not of 21"),
        (npy(numbers(20, WIDTH)), "has 20 tokens and needs room for 1 more"),
        (npy(np.full((2, WIDTH), np.nan, np.float32)), r"8 numbers that are NaN or infinite, the first at \(0, 0\)"),
        (npy(np.full((2, WIDTH), np.inf, np.float16)), "8 numbers that are NaN or infinite"),
        (save({"a": numbers(3, WIDTH), "b": numbers(3, WIDTH)}), "has 2 tensors"),
        (save_torch({"x": torch.full((2, WIDTH), torch.inf).bfloat16()}), "8 numbers that are NaN or infinite"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(tmp_path: Path, contents: bytes, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        prompt_of(generator(tmp_path), a_file(tmp_path, contents))


def test_nothing_else_than_tensors_is_read(tmp_path: Path) -> None:
    with pytest.raises(MediaUnreadable, match=r"use \.npy or \.safetensors"):
        prompt_of(generator(tmp_path), a_file(tmp_path, b"Once upon a time"))


def test_sizes_are_refused_by_the_header_alone(tmp_path: Path) -> None:
    """Reject a sparse file of 40 GB without reading it."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2500000000, 4), }"
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path = a_file(tmp_path, b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with path.open("r+b") as file:
        file.truncate(10 + len(header) + 40_000_000_000)
    with pytest.raises(InvalidInput, match="not of 2500000000"):
        prompt_of(generator(tmp_path), path)


def test_of_a_model_whose_directory_says_no_size_the_runner_checks_it(tmp_path: Path) -> None:
    path = a_file(tmp_path, npy(numbers(3, 7)))
    assert read_prompt_embeddings(path, width=None, most=None).shape == (3, 7)
    with pytest.raises(InvalidInput, match="of at least one tokens"):
        read_prompt_embeddings(a_file(tmp_path, npy(numbers(0, 7))), width=None, most=None)


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"hidden_size": 8}, 8), ({"n_embd": 8}, 8), ({"hidden_size": 16, "word_embed_proj_dim": 8}, 8),
        ({"hidden_size": 4, "text_config": {"hidden_size": 8}}, 8), ({}, None), ({"hidden_size": "8"}, None),
    ],
)  # fmt: skip
def test_the_hidden_size_is_what_config_json_says(config: Mapping[str, Any], width: int | None) -> None:
    assert embedding_width(config) == width


@pytest.mark.parametrize("other", [{"prompt": "a"}, {"messages": [{"role": "user", "content": "a"}]}])
def test_a_request_begins_in_one_way(tmp_path: Path, other: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="one of prompt, messages and prompt_embeds"):
        generator(tmp_path).request.model_validate({"prompt_embeds": "media://e", **other})


def test_the_text_is_told_as_it_is_without_a_token_before(tmp_path: Path) -> None:
    processor, sink = generator(tmp_path), FolderSink(tmp_path)
    path = a_file(tmp_path, npy(numbers(3, WIDTH)))
    request = processor.request.model_validate({"prompt_embeds": "media://e", "stop": ["B"]})
    prepared = processor.pre_process(request, LocalFiles({"media://e": path}))
    ids = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json")).encode("aAB").ids
    outputs = iter([Output({"token_ids": ids, "finish_reason": "length"})])
    assert processor.post_process(outputs, prepared.context, sink).text == "aA"
