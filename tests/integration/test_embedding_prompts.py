"""Prompts of embedding models, with MiniLM's real weights: the vectors that sentence-transformers makes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.language.tokens import read_vocabulary
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor, check_request_module
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_bert, a_model, load, minilm, tokens
from tests.support.model_directories import words_directory, write_json

pytestmark = pytest.mark.library

PROMPTS = {"query": "query: ", "passage": "Represent this text for search: ", "plain": None}
WEIGHTS = "model.safetensors"
TEXTS = ["Where do cats sleep?", "A cat sleeps on the sofa.", "word " * 30]


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def a_directory(folder: Path, *, include_prompt: bool = True, pooling: str = "mean", **config: Any) -> Path:
    """Return MiniLM's directory with prompts."""
    shutil.copytree(minilm(), folder, ignore=shutil.ignore_patterns(WEIGHTS))
    (folder / WEIGHTS).symlink_to(minilm() / WEIGHTS)  # 91 MB
    write_json(folder, "config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": None, **config})
    write_json(folder, "sentence_bert_config.json", {"max_seq_length": 16})
    path = folder / "1_Pooling" / "config.json"
    switches = {f"pooling_mode_{name}": name == f"{pooling}_tokens" for name in ("mean_tokens", "max_tokens")}
    switches["pooling_mode_cls_token"] = pooling == "cls"
    switches["pooling_mode_lasttoken"] = pooling == "lasttoken"
    path.write_text(json.dumps({**json.loads(path.read_text()), **switches, "include_prompt": include_prompt}))
    return folder


def embedded(engine: BatchingEngine, model: Model, texts: list[str], **request: Any) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        {"texts": texts, **request},
        {},
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        limits=model.limits,
    )


def vectors(engine: BatchingEngine, model: Model, texts: list[str], **request: Any) -> npt.NDArray[np.float64]:
    return np.array((embedded(engine, model, texts, **request).result.data or {})["embeddings"])


@cache
def network() -> Any:
    return transformers.AutoModel.from_pretrained(minilm(), local_files_only=True).eval()


@torch.inference_mode()
def expected(texts: list[str], prompt: str, *, include_prompt: bool, pooling: str) -> npt.NDArray[np.float64]:
    """Return what sentence-transformers 6.2 computes: `preprocess` of its Transformer and `forward` of its Pooling."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(minilm(), local_files_only=True)
    alone = tokenizer(prompt)["input_ids"] if prompt else [tokenizer.sep_token_id]
    length = len(alone) - (alone[-1] in tokenizer.all_special_ids)
    found = []
    for text in texts:
        inputs = tokenizer(prompt + text, truncation=True, max_length=16, return_tensors="pt")
        hidden = network()(**inputs).last_hidden_state[0]
        counted = hidden if include_prompt else hidden[length:]
        pooled = {
            "mean": counted.mean(dim=0), "max": counted.amax(dim=0), "cls": counted[0], "lasttoken": counted[-1]
        }[pooling]  # fmt: skip
        found.append((pooled / pooled.norm()).double().numpy())
    return np.stack(found)


@pytest.mark.breadth(
    but=(
        "None-request_of0--True", "passage-request_of1-Represent this text for search: -False",
        "passage-request_of2-query: -False", "passage-request_of4-Question: -False",
    )
)  # fmt: skip
@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize(
    ("default", "request_of", "prompt"),
    [
        (None, {}, ""),
        ("passage", {}, PROMPTS["passage"]),
        ("passage", {"prompt_name": "query"}, PROMPTS["query"]),
        ("passage", {"prompt_name": "plain"}, ""),
        ("passage", {"prompt": "Question: "}, "Question: "),
        ("passage", {"prompt": ""}, ""),
    ],
)
def test_a_prompt_comes_before_each_text(
    engine: BatchingEngine, tmp_path: Path, include_prompt: bool, default: str | None, request_of: Mapping[str, str],
    prompt: str,
) -> None:  # fmt: skip
    source = a_directory(tmp_path / "model", include_prompt=include_prompt, default_prompt_name=default)
    model = a_model(source, revision=tmp_path.name, processor="text-embedding", max_batch=1)
    found = vectors(engine, model, TEXTS, **request_of)
    np.testing.assert_allclose(found, expected(TEXTS, prompt, include_prompt=include_prompt, pooling="mean"), atol=1e-5)


@pytest.mark.breadth(but=("cls",))
@pytest.mark.parametrize("pooling", ["max", "cls", "lasttoken"])
def test_every_pooling_leaves_the_prompt_out(engine: BatchingEngine, tmp_path: Path, pooling: str) -> None:
    source = a_directory(tmp_path / "model", include_prompt=False, pooling=pooling)
    model = a_model(source, revision=tmp_path.name, processor="text-embedding", max_batch=1)
    found = vectors(engine, model, TEXTS, prompt_name="query")
    theirs = expected(TEXTS, PROMPTS["query"] or "", include_prompt=False, pooling=pooling)
    np.testing.assert_allclose(found, theirs, atol=1e-5)
    assert not np.allclose(found, expected(TEXTS, "", include_prompt=True, pooling=pooling), atol=1e-3)


def test_texts_of_several_prompts_share_a_batch(engine: BatchingEngine, tmp_path: Path) -> None:
    source = a_directory(tmp_path / "model", include_prompt=False)
    model = a_model(source, revision=tmp_path.name, max_batch=8, options={"task": "text-embedding"})
    ids = [tokens(101, *range(2000, 2000 + count), 102) for count in (5, 6, 7)]
    asked = [Prompt({"input_ids": ids[at], "prompt_tokens": skipped}) for at, skipped in ((0, 0), (1, 3), (2, 6))]
    together = [output.data["embedding"] for output in engine.run(model, iter(asked), check=lambda: None)]
    for prompt, found in zip(asked, together, strict=True):
        (alone,) = engine.run(model, iter([prompt]), check=lambda: None)
        np.testing.assert_allclose(found, alone.data["embedding"], atol=1e-6)


def test_the_request_lists_the_models_prompts(tmp_path: Path) -> None:
    model = a_model(a_directory(tmp_path / "model"), processor="text-embedding")
    processor = Registry.imported().processor_for(model)
    check_request_module(processor)
    schema = checked_entry(Registry.imported(), Runners.installed(), model).input_schema
    names = schema["properties"]["prompt_name"]["anyOf"][0]
    assert names == {"enum": ["query", "passage", "plain"], "type": "string"}
    with pytest.raises(ValueError, match="'query', 'passage' or 'plain'"):
        processor.request.model_validate({"texts": "a", "prompt_name": "question"})
    with pytest.raises(ValueError, match="give either prompt or prompt_name"):
        processor.request.model_validate({"texts": "a", "prompt_name": "query", "prompt": "q: "})


def test_a_model_without_prompts_has_none_to_name(engine: BatchingEngine) -> None:
    model = a_model(minilm(), processor="text-embedding")
    with pytest.raises(InvalidInput, match="has no prompt 'query'; known prompts: none"):
        embedded(engine, model, ["a"], prompt_name="query")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"prompts": ["query: "]}, "`prompts` of config_sentence_transformers.json is not an object of texts"),
        ({"prompts": {"query": 1}}, "is not an object of texts"),
        ({"default_prompt_name": "other"}, "has no prompt 'other', its `default_prompt_name`; it has: query, passage"),
    ],
)
def test_a_file_that_makes_no_sense_is_a_problem_of_the_model(
    tmp_path: Path, config: Mapping[str, Any], said: str
) -> None:
    with pytest.raises(ModelUnavailable, match=said):
        Registry.imported().processor_for(
            a_model(a_directory(tmp_path / "model", **config), processor="text-embedding")
        )


def test_a_runner_that_would_pool_the_prompt_too_is_refused(tmp_path: Path) -> None:
    model = a_model(a_directory(tmp_path / "model", include_prompt=False), processor="text-embedding", runner="vllm")
    problem = checked_entry(Registry.imported(), Runners.installed(), model).problem or ""
    assert "it does not take `prompt_tokens` (number). Runners for 'text-embedding': transformers." in problem


def test_a_text_without_tokens_of_its_own_is_refused(engine: BatchingEngine, tmp_path: Path) -> None:
    """Without a special token at its end, nothing is left to pool."""
    folder = a_bert(words_directory(tmp_path / "model"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, "post_processor": None}))
    write_json(folder, "config_sentence_transformers.json", {"prompts": {"cats": "the cat "}})
    write_json(folder / "1_Pooling", "config.json", {"pooling_mode_mean_tokens": True, "include_prompt": False})
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in
               (("Transformer", ""), ("Pooling", "1_Pooling"))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    model = a_model(folder, revision=tmp_path.name, processor="text-embedding")
    with pytest.raises(InvalidInput, match="Text 1 is empty"):
        embedded(engine, model, ["sat", " "], prompt_name="cats")


@pytest.mark.parametrize("skipped", [-1, 3, "1", True])
def test_a_wrong_number_of_tokens_is_refused(tmp_path: Path, skipped: Any) -> None:
    with closing(load(a_bert(tmp_path))) as runner, pytest.raises(ProcessorFailed, match="takes `prompt_tokens`"):
        runner.admit(Prompt({"input_ids": tokens(1, 2, 3), "prompt_tokens": skipped}))


def test_texts_are_lowered_where_sentence_transformers_lowers_them(tmp_path: Path) -> None:
    folder = words_directory(tmp_path / "m")
    assert read_vocabulary(a_model(folder), truncate=True).cut("The CAT").ids == [1, 0, 0, 2]
    write_json(folder, "sentence_bert_config.json", {"do_lower_case": True})
    assert read_vocabulary(a_model(folder), truncate=True).cut("The CAT").ids == [1, 3, 4, 2]
