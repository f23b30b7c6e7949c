"""Classification and ranking of texts: the numbers of transformers' own networks and tokenizers, batched and alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.registry import Registry
from penstock.processors.testing import check_processor
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_bert, a_model, save
from tests.support.model_directories import each

WORDS = [
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "cats",
    "sleep",
    "all",
    "day",
    "rain",
    "falls",
    "what",
    "do",
    "the",
    "on",
    "sofa",
]
TEXTS = ["cats sleep", "the rain falls on the sofa all day", "what", "cats </s> sleep", "day " * 40]
QUERY, DOCUMENTS = "what do cats do", ["cats sleep all day", "rain falls", "the sofa", "cats " * 40]
_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_COMMON = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.5}
_ENCODER = {**_SMALL, **_COMMON, "max_position_embeddings": 40}
_ROTARY = {**_ENCODER, "num_key_value_heads": 1, "head_dim": 8}

#: Tiny configurations by model type.
KINDS: Mapping[str, Callable[..., Any]] = {
    "bert": lambda **more: transformers.BertConfig(**_ENCODER, **more),
    "roberta": lambda **more: transformers.RobertaConfig(**_ENCODER, type_vocab_size=1, **more),
    "xlm-roberta": lambda **more: transformers.XLMRobertaConfig(**_ENCODER, type_vocab_size=1, **more),
    "modernbert": lambda **more: transformers.ModernBertConfig(**_ENCODER, cls_token_id=1, sep_token_id=2, **more),
    "deberta-v2": lambda **more: transformers.DebertaV2Config(
        **_ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False, **more
    ),
    "distilbert": lambda **more: transformers.DistilBertConfig(
        **_COMMON, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=40, **more
    ),
    "qwen3": lambda **more: transformers.Qwen3Config(**_ROTARY, **more),
    "llama": lambda **more: transformers.LlamaConfig(**_ROTARY, **more),
    "bart": lambda **more: transformers.BartConfig(
        **_COMMON, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=40, init_std=0.5, decoder_start_token_id=2,
        **more,
    ),
}  # fmt: skip


def a_directory(kind: str, folder: Path, *, types: bool = False, **config: Any) -> Path:
    """Save a tiny random classifier with a tokenizer of words, whose pairs have `types` as BERT's have."""
    torch.manual_seed(3)
    made = KINDS[kind](**config)
    save(transformers.AutoModelForSequenceClassification.from_config(made), folder)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    second = ":1" if types else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair=f"<s> $A </s> $B{second} </s>{second}", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ["input_ids", "token_type_ids", "attention_mask"] if types else ["input_ids", "attention_mask"]
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32, "model_input_names": names}
    tokens = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**said, **tokens}))
    return folder


def answered(model: Model, **request: Any) -> Mapping[str, Any]:
    """Return the result of a job, through the processor and the engine."""
    processor: Any = Registry.imported().processor_for(model)
    with closing(BatchingEngine(Runners.installed())) as engine:
        prepared = processor.pre_process(processor.request.model_validate(request), None)
        outputs = engine.run(model, prepared.prompts, check=lambda: None)
        return dict(processor.post_process(outputs, prepared.context, None).data)


def harmless(text: str) -> str:
    """Return the text as the service reads it: special tokens that users type are broken."""
    return text.replace("</s>", "< /s>")


@torch.inference_mode()
def logits(folder: Path, texts: list[Any], *pairs: list[str]) -> torch.Tensor:
    """Return what the library computes, text by text."""
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder, local_files_only=True).eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rows = [
        network(**tokenizer(*[harmless(part) for part in one], truncation=True, return_tensors="pt")).logits[0]
        for one in zip(texts, *pairs, strict=True)
    ]
    return torch.stack(rows)


@pytest.mark.breadth(but=("bert",))
@pytest.mark.parametrize("kind", KINDS)
def test_classes_are_those_of_the_library_batched_and_alone(tmp_path: Path, kind: str) -> None:
    folder = a_directory(kind, tmp_path, id2label={0: "bad", 1: "fair", 2: "good"})
    model = a_model(folder, processor="text-classification", max_batch=8)
    together = answered(model, texts=TEXTS, top_k=3)
    expected = torch.softmax(logits(folder, TEXTS).double(), dim=1).numpy()
    assert float(np.ptp(expected, axis=0).max()) > 0.01  # texts make a difference
    names = ["bad", "fair", "good"]
    for text, found, scores in zip(TEXTS, together["texts"], expected, strict=True):
        alone = answered(model, texts=text, top_k=3)["texts"][0]["labels"]
        for labels in (found["labels"], alone):
            by_id = sorted(labels, key=lambda label: label["id"])
            assert [label["label"] for label in by_id] == names
            np.testing.assert_allclose([label["score"] for label in by_id], scores, atol=2e-5)
        assert found["labels"][0]["label"] == names[int(scores.argmax())]
    assert together["truncated"] == [4]


@pytest.mark.breadth(but=("bert-True",))
@pytest.mark.parametrize(("kind", "types"), [("bert", True), *((kind, False) for kind in KINDS)])
def test_ranks_are_those_of_the_library_batched_and_alone(tmp_path: Path, kind: str, types: bool) -> None:
    folder = a_directory(kind, tmp_path, types=types, id2label={0: "relevance"})
    model = a_model(folder, processor="text-ranking", max_batch=8)
    found = answered(model, queries=QUERY, documents=DOCUMENTS)
    expected = torch.sigmoid(logits(folder, [QUERY] * 4, DOCUMENTS))[:, 0].numpy()
    assert float(np.ptp(expected)) > 1e-3
    np.testing.assert_allclose(found["scores"], expected, atol=2e-5)
    alone = [answered(model, queries=QUERY, documents=document)["scores"][0] for document in DOCUMENTS]
    np.testing.assert_allclose(alone, expected, atol=2e-5)
    assert found["ranking"] == sorted(range(4), key=lambda index: -found["scores"][index])
    raw = answered(model, queries=[QUERY, "rain"], documents=DOCUMENTS[:2], raw=True)["scores"]
    np.testing.assert_allclose(raw, logits(folder, [QUERY, "rain"], DOCUMENTS[:2])[:, 0].numpy(), atol=1e-4)


def test_the_parts_of_a_pair_change_bert_s_score(tmp_path: Path) -> None:
    scores = [
        answered(
            a_model(
                a_directory("bert", tmp_path / str(types), types=types, id2label={0: "x"}), processor="text-ranking"
            ),
            queries=QUERY, documents=DOCUMENTS,
        )["scores"]
        for types in (False, True)
    ]  # fmt: skip
    assert not np.allclose(*scores, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "activation"),
    [
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, torch.nn.Identity()),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, torch.nn.Identity()),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, torch.nn.Sigmoid()),
    ],
)
def test_ranks_have_the_activation_of_the_directory(tmp_path: Path, config: dict[str, Any], activation: Any) -> None:
    folder = a_directory("bert", tmp_path, id2label={0: "x"})
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    found = answered(a_model(folder, processor="text-ranking"), queries=QUERY, documents=DOCUMENTS)["scores"]
    np.testing.assert_allclose(found, activation(logits(folder, [QUERY] * 4, DOCUMENTS))[:, 0].numpy(), atol=2e-5)


@pytest.mark.parametrize(
    ("problem", "labels", "function"),
    [
        ("multi_label_classification", 3, torch.sigmoid),
        ("regression", 1, lambda scores: scores),
        (None, 1, torch.sigmoid),
    ],
)
def test_scores_are_those_of_the_library_s_pipeline(
    tmp_path: Path, problem: str | None, labels: int, function: Any
) -> None:
    names = {number: f"l{number}" for number in range(labels)}
    folder = a_directory("bert", tmp_path, id2label=names, problem_type=problem)
    found = answered(a_model(folder, processor="text-classification"), texts=TEXTS)["texts"]
    pipeline: Any = transformers.pipeline("text-classification", model=str(folder), top_k=None)
    for text, one, row in zip(TEXTS, found, function(logits(folder, TEXTS)).tolist(), strict=True):
        scores = {label["label"]: label["score"] for label in one["labels"]}
        assert scores == pytest.approx({f"l{number}": score for number, score in enumerate(row)}, abs=2e-5)
        [own] = pipeline([harmless(text)], truncation=True)
        assert scores == pytest.approx({label["label"]: label["score"] for label in own}, abs=2e-5)


def test_long_queries_and_documents_are_cut_to_the_request_s_tokens(tmp_path: Path) -> None:
    model = a_model(a_directory("bert", tmp_path, id2label={0: "x"}), processor="text-ranking")
    cut = answered(model, queries="what do cats", documents=TEXTS[1], max_query_tokens=2, max_document_tokens=3)
    short = answered(model, queries="what do", documents="the rain falls")
    assert (cut["scores"], cut["usage"]) == (short["scores"], {"prompt_tokens": 8})


def test_a_decoder_without_a_padding_token_runs_its_texts_one_by_one(tmp_path: Path) -> None:
    folder = a_directory("qwen3", tmp_path, id2label={0: "x"})
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, "pad_token_id": None}))
    found = answered(a_model(folder, processor="text-ranking", max_batch=8), queries=QUERY, documents=DOCUMENTS[:3])
    expected = torch.sigmoid(logits(folder, [QUERY] * 3, DOCUMENTS[:3]))[:, 0].numpy()
    np.testing.assert_allclose(found["scores"], expected, atol=2e-5)


def test_models_that_cannot_rank_or_classify_are_refused_in_words(tmp_path: Path) -> None:
    three = a_directory("bert", tmp_path / "three", id2label={0: "a", 1: "b", 2: "c"})
    with pytest.raises(ModelUnavailable, match=r'3 labels, and ranking needs one .*processor = "text-classification"'):
        Registry.imported().processor_for(a_model(three, processor="text-ranking"))
    one = a_directory("bert", tmp_path / "one", id2label={0: "a"})
    said = json.loads((one / "config.json").read_text())
    (one / "config.json").write_text(
        json.dumps({**said, "sbert_ce_default_activation_function": "torch.nn.modules.x.Y"})
    )
    with pytest.raises(ModelUnavailable, match=r"the activation 'torch\.nn\.modules\.x\.Y'; known ones: "):
        Registry.imported().processor_for(a_model(one, processor="text-ranking"))
    with pytest.raises(ModelUnavailable, match="lacks 2 of the weights that BertForSequenceClassification needs"):
        Runners.installed().load(a_model(a_bert(tmp_path / "body"), processor="text-classification"))


@pytest.mark.parametrize(
    ("processor", "request_"),
    [
        ("text-classification", {"texts": TEXTS}),
        ("text-ranking", {"queries": QUERY, "documents": DOCUMENTS}),
    ],
)
def test_processors_keep_their_contract(tmp_path: Path, processor: str, request_: dict[str, Any]) -> None:
    model = a_model(a_directory("bert", tmp_path, id2label={0: "x"}), processor=processor)
    network = each(lambda data: {"logits": data["input_ids"][:1].astype(np.float32)})
    check_processor(Registry.imported().processor_for(model), request_, {}, engine=network, limits=model.limits)
