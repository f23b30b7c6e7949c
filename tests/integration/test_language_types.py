"""Language models of every type continue texts as the library's own `generate` does, alone and in turns with others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.general import GeneralRunner
from penstock.workers.engine.transformers.generation import GenerationRunner
from tests.support.language_types import REFUSED, UNTRIED, small, table, tried, types

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "what-runs.md"
NEW = 8
#: One of each kind of state, and the families that people bring.
FAMILIES = (
    "bamba", "bart", "falcon_h1", "falcon_mamba", "gpt2", "granitemoehybrid", "jamba", "lfm2", "llama", "mamba",
    "mamba2", "marian", "olmo_hybrid", "openai-gpt", "pegasus", "qwen3_5_text", "qwen3_next", "recurrent_gemma", "rwkv",
    "t5", "xlm-roberta", "zamba2",
)  # fmt: skip
#: Families whose whole state is a key-value cache that we copy.
COPIED = ("gpt2", "llama")


def made(kind: str, folder: Path) -> Any:
    """Save a tiny network of a type, with random weights that are not all alike; return its class of the library."""
    torch.manual_seed(3)
    config = small(kind)
    both = config.is_encoder_decoder and type(config) in transformers.AutoModelForSeq2SeqLM._model_mapping
    auto = transformers.AutoModelForSeq2SeqLM if both else transformers.AutoModelForCausalLM
    network = auto.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    network.generation_config.max_length = None
    network.save_pretrained(folder)
    return auto


def a_model(source: Path, **fields: Any) -> Model:
    common = {"title": "M", "processor": "text-generation", "revision": "1", "device": "cpu", "max_batch": 4}
    return Model(name="writer", runner="transformers", source=str(source), **{**common, **fields})


def texts(vocabulary: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return prompts of three lengths."""
    random = np.random.default_rng(1)
    return [random.integers(5, min(vocabulary, 90), length) for length in (7, 12, 3)]


def asked(ids: np.ndarray[Any, np.dtype[np.int64]]) -> Prompt:
    return Prompt({"input_ids": ids, "max_new_tokens": NEW, "temperature": 0.0, "top_p": 1.0, "seed": 0})


def finished(runner: Runner, states: Sequence[Any]) -> list[list[int]]:
    """Step until all are done; those that are done sooner are left out."""
    going, done = dict(enumerate(states)), {}
    while going:
        for (index, _), step in zip(list(going.items()), runner.step(list(going.values())), strict=True):
            if isinstance(step, Continue):
                going[index] = step.state
            else:
                done[index] = list(step.output.data["token_ids"])
                del going[index]
    return [done[index] for index in range(len(states))]


def expected(auto: Any, source: Path, ids: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
    """Return the library's new tokens up to the first end."""
    network = auto.from_pretrained(source).eval()
    with torch.inference_mode():
        found = network.generate(torch.tensor(ids)[None], max_new_tokens=NEW, do_sample=False, num_beams=1)[0].tolist()
    ends = network.generation_config.eos_token_id
    known = {ends} if isinstance(ends, int) else set(ends or ())
    new = found[1:] if auto is transformers.AutoModelForSeq2SeqLM else found[len(ids) :]
    return new[: next((place for place, token in enumerate(new) if token in known), len(new))]


@pytest.mark.breadth(but=FAMILIES)
@pytest.mark.parametrize("kind", tried())
def test_a_type_makes_the_librarys_tokens_alone_and_beside_others(tmp_path: Path, kind: str) -> None:
    auto = made(kind, tmp_path)
    Runners.installed().check(a_model(tmp_path))
    runner = Runners.installed().load(a_model(tmp_path))
    prompts = texts(transformers.AutoConfig.from_pretrained(tmp_path).get_text_config().vocab_size)
    alone = [finished(runner, [runner.admit(asked(ids))])[0] for ids in prompts]
    assert alone == [expected(auto, tmp_path, ids) for ids in prompts]
    first = runner.step([runner.admit(asked(prompts[0]))])[0]
    if isinstance(first, Continue):  # the others begin a step later
        assert finished(runner, [first.state, *(runner.admit(asked(ids)) for ids in prompts[1:])]) == alone
    if kind in FAMILIES:
        assert isinstance(runner, GenerationRunner if kind in COPIED else GeneralRunner)
    runner.close()


@pytest.mark.parametrize("kind", ["mamba", "lfm2", "t5"])
def test_a_step_that_failed_is_taken_again(tmp_path: Path, kind: str) -> None:
    made(kind, tmp_path)
    runner = Runners.installed().load(a_model(tmp_path))
    ids = texts(128)[0]
    [alone] = finished(runner, [runner.admit(asked(ids))])
    state: Any = runner.admit(asked(ids))
    for _ in range(3):
        step = runner.step([state])[0]
        assert isinstance(step, Continue)
        again = runner.step([state])[0]  # as the engine does after an error of another text
        assert isinstance(again, Continue)
        assert again.state == step.state
        state = step.state
    state.chat.opened = None  # as an error of its own leaves it
    assert finished(runner, [state]) == [alone]


def test_a_hybrid_takes_no_embeddings(tmp_path: Path) -> None:
    made("mamba", tmp_path)
    runner = Runners.installed().load(a_model(tmp_path))
    prompt = Prompt({**asked(texts(128)[0]).data, "inputs_embeds": np.zeros((3, 32), np.float32)})
    with pytest.raises(InvalidInput, match="MambaForCausalLM takes no embeddings"):
        runner.admit(prompt)


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_a_type_that_cannot_run_is_refused_unread(tmp_path: Path, kind: str) -> None:
    config = transformers.AutoConfig.for_model(kind).to_dict()
    # What a directory of the type says of itself is enough for the refusal.
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": kind}, default=str))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelUnavailable, match=REFUSED[kind]):
        Runners.installed().check(a_model(tmp_path))


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        ("bert", {"is_decoder": False}, "lacks `is_decoder`"),
        ("t5", {"decoder_start_token_id": None}, "names no `decoder_start_token_id`"),
        ("llama", {"num_attention_heads": 0}, "do not make a network"),
        ("whisper", {}, "something other than texts"),
    ],
)
def test_a_directory_that_makes_no_texts_is_refused_unread(
    tmp_path: Path, kind: str, changes: dict[str, Any], words: str
) -> None:
    if kind == "whisper":
        transformers.WhisperForConditionalGeneration(small(kind)).save_pretrained(tmp_path)
    else:
        made(kind, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(ModelUnavailable, match=words):
        Runners.installed().check(a_model(tmp_path))


def test_continuous_batching_of_a_hybrid_is_refused_unread(tmp_path: Path) -> None:
    made("mamba", tmp_path)
    with pytest.raises(ModelUnavailable, match="MambaForCausalLM has none"):
        Runners.installed().check(a_model(tmp_path, options={"batching": "continuous"}))


def test_the_page_lists_the_types() -> None:
    assert table() in PAGE.read_text(encoding="utf-8"), "put what `tests.support.language_types.table()` returns there"
    assert set(UNTRIED) | set(REFUSED) <= set(types())
