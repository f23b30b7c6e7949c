"""A model's expected memory before it is loaded, against its real memory: shared passes have pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from penstock.models import Model
from penstock.workers.engine.base import Runner
from penstock.workers.engine.builtin import TRANSFORMERS
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.fake import FakeRunner
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_model, save
from tests.support.language import a_gpt2, a_mistral

CONTINUOUS = {"batching": "continuous"}


def a_gemma(folder: Path) -> Path:
    """Save one of three layers of which two slide."""
    config = transformers.Gemma2Config(
        vocab_size=60, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=16, sliding_window=16, initializer_range=0.5,
    )  # fmt: skip
    return save(transformers.Gemma2ForCausalLM(config), folder)


def weights(folder: Path) -> int:
    return (folder / "model.safetensors").stat().st_size


def texts(source: Path, **fields: Any) -> Model:
    return a_model(source, **{"max_batch": 8, **fields, "options": {**CONTINUOUS, **fields.get("options", {})}})


@pytest.mark.parametrize(
    ("make", "fields", "pages"),
    [
        # 8 texts of 64 + 32 tokens are 24 pages of 32, and 2 of the library's: 2 layers of 2 heads of 8 numbers, keys
        # and values. A mask has a row for each of 512 tokens of a pass, with a column for these and those in the pages.
        (a_gpt2, {}, 26 * 32 * 2 * 2 * 2 * 8 * 4 + (768 + 512) * (512 * 4 + 8)),
        # The layers slide, and the text may be longer than there is room for: 16,384 tokens.
        (a_mistral, {}, 514 * 32 * 2 * 2 * 1 * 8 * 4 + (16_384 + 512) * (512 * 4 + 8)),
        (a_mistral, {"dtype": "bfloat16"}, 514 * 32 * 2 * 2 * 1 * 8 * 2 + (16_384 + 512) * (512 * 2 + 8)),
        (a_mistral, {"max_batch": 600}, 514 * 32 * 2 * 2 * 1 * 8 * 4 + (16_384 + 600) * (600 * 4 + 8)),
        # 95 sectors of two layers' pages: the third layer could have 190 of them, and each kind has a mask.
        (
            a_gemma,
            {"options": {"cache_tokens": 2000}},
            97 * 32 * 2 * 2 * 2 * 8 * 4 + 2 * (190 * 32 + 512) * (512 * 4 + 8),
        ),
    ],
)
def test_pages_are_expected_as_they_will_be(
    tmp_path: Path, make: Callable[[Path], Path], fields: dict[str, Any], pages: int
) -> None:
    source = make(tmp_path)
    model = texts(source, **fields)
    assert Runners.installed().expected_bytes(model) == weights(source) + pages
    with closing(Runners.installed().load(model)) as runner:
        assert Runners.installed().expected_bytes(model) == pytest.approx(runner.memory_bytes, rel=0.02)


def test_texts_that_share_no_passes_have_no_pages(tmp_path: Path) -> None:
    source = a_gpt2(tmp_path)
    assert Runners.installed().expected_bytes(a_model(source)) == weights(source)


def test_what_the_files_do_not_say_is_left_to_the_loading(tmp_path: Path) -> None:
    source = a_gpt2(tmp_path)
    for options in ({"cache_tokens": 0}, {"batching": "static"}):
        assert Runners.installed().expected_bytes(texts(source, options=options)) == weights(source)
    for config in ("{", "{}", json.dumps({"model_type": "mamba"})):
        (source / "config.json").write_text(config)
        assert Runners.installed().expected_bytes(texts(source)) == weights(source)


def test_another_model_goes_before_one_is_loaded_whose_pages_find_no_room_beside_it(tmp_path: Path) -> None:
    notes: list[str] = []

    class Noted(FakeRunner):
        def close(self) -> None:
            notes.append("the other is gone")

    def load(model: Model) -> Runner:
        notes.append("loading")
        return Runners.installed().load(model)

    source = a_mistral(tmp_path)  # 36.9 MB of pages, 8 kB of weights
    runners = Runners.of({"fake": lambda _: Noted(memory_bytes=20_000_000)})
    runners = runners.register("transformers", replace(TRANSFORMERS, load=load))
    with closing(BatchingEngine(runners, memory_bytes=50_000_000)) as engine:
        engine.load(Model(**{**a_model(source).model_dump(), "name": "other", "runner": "fake"}), check=lambda: None)
        engine.load(texts(source), check=lambda: None)
        assert notes == ["the other is gone", "loading"]
