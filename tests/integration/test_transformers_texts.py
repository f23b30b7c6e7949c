"""Texts through the runner `transformers`: MiniLM's real weights, and tiny networks for the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_bert, a_model, finish, load, minilm, save, tokens

TEXTS = ("A cat sleeps on the sofa.", "A kitten naps on the couch.", "The car needs new tyres.", "Hi", "word " * 60)


@pytest.fixture(scope="module")
def sentences() -> Iterator[Runner]:
    """Return MiniLM."""
    with closing(load(minilm(), max_batch=8)) as runner:
        yield runner


def prompts(texts: tuple[str, ...] = TEXTS) -> list[Prompt]:
    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    tokenizer.no_padding()
    return [Prompt({"input_ids": np.array(tokenizer.encode(text).ids, np.int64)}) for text in texts]


def embeddings(runner: Runner, asked: list[Prompt]) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.stack([output.data["embedding"] for output in finish(runner, *asked)])


@pytest.mark.breadth
@torch.inference_mode()
def test_minilm_is_mean_pooled_and_of_length_one_as_its_directory_says(sentences: Runner) -> None:
    network = transformers.AutoModel.from_pretrained(minilm(), local_files_only=True).eval()
    found = embeddings(sentences, prompts())
    assert (found.shape, found.dtype) == ((5, 384), np.float32)
    for prompt, embedding in zip(prompts(), found, strict=True):
        mean = network(input_ids=torch.from_numpy(prompt.data["input_ids"])[None]).last_hidden_state[0].mean(dim=0)
        np.testing.assert_allclose(embedding, (mean / mean.norm()).numpy(), atol=1e-6)


def test_texts_that_mean_the_same_are_near_each_other(sentences: Runner) -> None:
    cat, kitten, car, *_ = embeddings(sentences, prompts())
    assert cat @ kitten > 0.6
    assert cat @ car < 0.2


@pytest.mark.breadth
def test_a_text_s_neighbours_change_its_last_bits_only(sentences: Runner) -> None:
    alone = np.concatenate([embeddings(sentences, [prompt]) for prompt in prompts()])
    np.testing.assert_allclose(embeddings(sentences, prompts()), alone, atol=1e-6)
    again = np.concatenate([embeddings(sentences, [prompt]) for prompt in prompts()])
    assert np.array_equal(alone, again)


def test_texts_of_nearly_one_length_share_a_batch(sentences: Runner) -> None:
    short, other, long = (sentences.bucket(Prompt({"input_ids": tokens(*range(1, n + 1))})) for n in (3, 32, 33))
    assert short == other != long


@pytest.mark.breadth
def test_through_the_engine_every_text_gets_its_own_embedding() -> None:
    model = a_model(minilm(), max_batch=8)
    asked = prompts() * 3
    with closing(BatchingEngine(Runners.installed())) as engine:
        found = np.stack([output.data["embedding"] for output in engine.run(model, iter(asked), check=lambda: None)])
    with closing(load(minilm())) as runner:
        alone = np.concatenate([embeddings(runner, [prompt]) for prompt in asked])
    np.testing.assert_allclose(found, alone, atol=1e-6)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (None, r"takes `input_ids`, an int64 array \(tokens,\)"),
        ([1, 2], "takes `input_ids`, an int64 array"),
        (np.array([1, 2], np.int32), "takes `input_ids`, an int64 array"),
        (np.zeros((1, 2), np.int64), "takes `input_ids`, an int64 array"),
        (tokens(), "takes no empty text"),
        (tokens(*range(41)), "takes at most 40 tokens, the prompt has 41"),
        (tokens(5, 100), "knows the tokens 0 to 99; the prompt has others"),
        (tokens(-1), "knows the tokens 0 to 99; the prompt has others"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_with_what_is_needed(tmp_path: Path, ids: Any, sentence: str) -> None:
    kind = ProcessorFailed if "takes `input_ids`" in sentence else InvalidInput
    with closing(load(a_bert(tmp_path))) as runner, pytest.raises(kind, match=sentence):
        runner.admit(Prompt({"input_ids": ids}))


def test_a_network_whose_positions_begin_later_takes_fewer_tokens(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = transformers.RobertaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=12,
        pad_token_id=1,
    )
    with closing(load(save(transformers.RobertaModel(config), tmp_path))) as runner:
        most = Prompt({"input_ids": tokens(*range(5, 15))})
        assert finish(runner, most)[0].data["embedding"].shape == (16,)
        with pytest.raises(InvalidInput, match="at most 10 tokens, the prompt has 11"):
            runner.admit(Prompt({"input_ids": tokens(*range(5, 16))}))


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "lasttoken"])
@torch.inference_mode()
def test_options_say_the_pooling_where_the_directory_does_not(tmp_path: Path, pooling: str) -> None:
    directory = a_bert(tmp_path)
    short, long = tokens(7, 8), tokens(9, 10, 11, 12)
    with closing(load(directory, options={"pooling": pooling, "normalize": False})) as runner:
        found = finish(runner, Prompt({"input_ids": short}), Prompt({"input_ids": long}))
    network = transformers.AutoModel.from_pretrained(directory, local_files_only=True).eval()
    for ids, output in zip((short, long), found, strict=True):
        hidden = network(input_ids=torch.from_numpy(ids)[None]).last_hidden_state[0]
        expected = {"mean": hidden.mean(dim=0), "cls": hidden[0], "max": hidden.amax(dim=0), "lasttoken": hidden[-1]}
        np.testing.assert_allclose(output.data["embedding"], expected[pooling].numpy(), rtol=1e-4, atol=1e-5)


def with_modules(folder: Path, *kinds: str, **pooling: Any) -> Path:
    """Save a BERT with sentence-transformers' files beside it."""
    a_bert(folder)
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"path": paths.get(kind, "x"), "type": f"sentence_transformers.models.{kind}"} for kind in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))
    return folder


@pytest.mark.parametrize("pooling", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_both_ways_of_sentence_transformers_to_say_the_pooling_are_read(
    tmp_path: Path, pooling: dict[str, Any]
) -> None:
    directory = with_modules(tmp_path / "a", "Transformer", "Pooling", **pooling)
    prompt = Prompt({"input_ids": tokens(1, 2, 3)})
    # Options do not overrule the directory.
    with closing(load(directory, options={"pooling": "mean"})) as runner:
        (found,) = finish(runner, prompt)
    with closing(load(a_bert(tmp_path / "b"), options={"pooling": "cls", "normalize": False})) as runner:
        (expected,) = finish(runner, prompt)
    assert np.array_equal(found.data["embedding"], expected.data["embedding"])


MODES = ("mean", "cls", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")


@pytest.mark.parametrize("switches", [*((mode,) for mode in MODES), ("lasttoken", "mean", "cls")])
@torch.inference_mode()
def test_poolings_are_those_of_sentence_transformers_batched_and_alone(
    tmp_path: Path, switches: tuple[str, ...]
) -> None:
    names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
    config = {f"pooling_mode_{names.get(mode, mode)}": mode in switches for mode in MODES}
    directory = with_modules(tmp_path, "Transformer", "Pooling", **config)
    listed = with_modules(tmp_path / "listed", "Transformer", "Pooling", pooling_mode=list(switches))
    asked = [tokens(7, 8), tokens(9, 10, 11, 12), tokens(5)]
    prompts = [Prompt({"input_ids": ids}) for ids in asked]
    network = transformers.AutoModel.from_pretrained(directory, local_files_only=True).eval()
    with closing(load(directory)) as runner, closing(load(listed)) as other:
        together, alone = finish(runner, *prompts), [finish(runner, prompt)[0] for prompt in prompts]
        by_list = finish(other, *prompts)
    for ids, *found in zip(asked, together, alone, by_list, strict=True):
        hidden = network(input_ids=torch.from_numpy(ids)[None]).last_hidden_state[0]
        weights = torch.arange(1, len(ids) + 1)[:, None]
        each = {
            "mean": hidden.mean(dim=0),
            "cls": hidden[0],
            "max": hidden.amax(dim=0),
            "lasttoken": hidden[-1],
            "weightedmean": (hidden * weights).sum(dim=0) / weights.sum(),
            "mean_sqrt_len_tokens": hidden.sum(dim=0) / len(ids) ** 0.5,
        }
        in_order = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
        expected = torch.cat([each[mode] for mode in in_order if mode in switches]).numpy()
        own = torch.cat([each[mode] for mode in switches]).numpy()  # lists keep their order
        for output, wanted in zip(found, (expected, expected, own), strict=True):
            np.testing.assert_allclose(output.data["embedding"], wanted, rtol=1e-4, atol=1e-5)


def with_dense(folder: Path, **config: Any) -> Path:
    """Save a BERT with a Dense, a LayerNorm and a Normalize after its pooling."""
    directory = with_modules(folder, "Transformer", "Pooling", "Dense", "LayerNorm", "Normalize", pooling_mode="mean")
    modules = json.loads((directory / "modules.json").read_text())
    for place, name in ((2, "2_Dense"), (3, "3_LayerNorm")):
        modules[place]["path"] = name
        (directory / name).mkdir()
    (directory / "modules.json").write_text(json.dumps(modules))
    torch.manual_seed(9)
    said = {"in_features": 16, "out_features": 6, "bias": True, **config}
    (directory / "2_Dense" / "config.json").write_text(json.dumps(said))
    linear = {"linear.weight": torch.randn(6, 16), "linear.bias": torch.randn(6)}
    save_file(linear, directory / "2_Dense" / "model.safetensors")
    (directory / "3_LayerNorm" / "config.json").write_text(json.dumps({"dimension": 6}))
    norm = {"norm.weight": torch.randn(6), "norm.bias": torch.randn(6)}
    save_file(norm, directory / "3_LayerNorm" / "model.safetensors")
    return directory


@pytest.mark.parametrize("dimensions", [None, 4])
@torch.inference_mode()
def test_layers_after_the_pooling_are_computed_in_order(tmp_path: Path, dimensions: int | None) -> None:
    directory = with_dense(tmp_path)
    (directory / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": dimensions}))
    ids = tokens(7, 8, 9)
    with closing(load(directory)) as runner:
        (found,) = finish(runner, Prompt({"input_ids": ids}))
    network = transformers.AutoModel.from_pretrained(directory, local_files_only=True).eval()
    pooled = network(input_ids=torch.from_numpy(ids)[None]).last_hidden_state[0].mean(dim=0)
    dense = load_file(directory / "2_Dense" / "model.safetensors")
    norm = load_file(directory / "3_LayerNorm" / "model.safetensors")
    made = torch.tanh(dense["linear.weight"] @ pooled + dense["linear.bias"])
    made = torch.nn.functional.layer_norm(made, (6,), norm["norm.weight"], norm["norm.bias"])
    expected = (made / made.norm())[:dimensions]
    np.testing.assert_allclose(found.data["embedding"], expected.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("kinds", "pooling", "sentence"),
    [
        (
            ("Transformer", "Pooling", "Dropout"),
            {},
            "modules.json has the modules Transformer, Pooling, Dropout; known modules:",
        ),
        (("Transformer", "Pooling"), {"pooling_mode": "median"}, "pooling .* is not one of mean, cls"),
        (("Transformer", "Pooling"), {"pooling_mode": ["mean", "median"]}, "pooling .* is not one of mean, cls"),
        (("Transformer", "Pooling"), {}, "pooling .* is not one of mean, cls"),
    ],
)
def test_modules_that_this_runner_does_not_know_are_refused_when_checked(
    tmp_path: Path, kinds: tuple[str, ...], pooling: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        Runners.installed().check(a_model(with_modules(tmp_path, *kinds, **pooling), processor="text-embedding"))


def _own_code(directory: Path) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (directory / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_own_code, r"has the modules custom_st\.Transformer, Pooling"),
        (lambda at: (at / "2_Dense" / "model.safetensors").unlink(), "2_Dense lacks the file model.safetensors"),
        (
            lambda at: (at / "config_sentence_transformers.json").write_text('{"truncate_dim": "many"}'),
            "`truncate_dim` .* is a number of dimensions, not 'many'",
        ),
        (
            lambda at: (at / "sentence_bert_config.json").write_text('{"transformer_task": "fill-mask"}'),
            "`transformer_task` 'fill-mask' .* is not 'feature-extraction'",
        ),
    ],
)
def test_settings_that_are_not_computed_are_refused_when_checked(tmp_path: Path, change: Any, sentence: str) -> None:
    directory = with_dense(tmp_path)
    change(directory)
    with pytest.raises(ModelUnavailable, match=sentence):
        Runners.installed().check(a_model(directory, processor="text-embedding"))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"activation_function": "somebody.Tanh"}, r"has the activation somebody\.Tanh; known ones: Tanh"),
        ({"use_residual": True}, "has a residual, or reads or writes another value"),
        ({"module_input_name": "token_embeddings"}, "has a residual, or reads or writes another value"),
        ({"in_features": 8}, "the weights in 2_Dense do not fit its config.json"),
        ({"out_features": None}, "has no usable `out_features`: None"),
    ],
)
def test_dense_layers_that_are_not_computed_are_refused(tmp_path: Path, config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelUnavailable, match=sentence):
        load(with_dense(tmp_path, **config), processor="text-embedding")


def test_a_pooling_that_leads_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    directory = with_modules(tmp_path / "m", "Transformer", "Pooling", pooling_mode="cls")
    modules = json.loads((directory / "modules.json").read_text())
    modules[1]["path"] = "../elsewhere"
    (directory / "modules.json").write_text(json.dumps(modules))
    shutil.copytree(directory / "1_Pooling", tmp_path / "elsewhere")
    with pytest.raises(ModelUnavailable, match=r"leads out of the directory: \.\./elsewhere"):
        load(directory)
