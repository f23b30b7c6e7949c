"""Token classification: a tiny BERT with random weights, against the library's own pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import penstock
from penstock.errors import InvalidInput
from tests.kinds.served import serving

pytestmark = pytest.mark.library

WORDS = ["anna", "lives", "in", "oslo", "and", "works", "for", "the", "river", "board", "near", "lake", "mjosa"]
TEXTS = [" ".join(WORDS), " ".join(reversed(WORDS)), "Anna lives in Oslo"]
#: More than the network's 24 places.
LONG = " ".join(WORDS * 4)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ner")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=24).save_pretrained(folder)
    torch.manual_seed(17)
    labels = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, initializer_range=1.5, id2label=labels,
        label2id={label: number for number, label in labels.items()},
    )  # fmt: skip
    transformers.BertForTokenClassification(config).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def engine(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Engine]:
    with serving(tmp_path_factory.mktemp("catalogue"), "token-classification", source) as engine:
        yield engine


def theirs(source: Path, texts: list[str], **options: Any) -> list[list[dict[str, Any]]]:
    pipe = transformers.pipeline("token-classification", model=str(source), device="cpu", **options)
    return [[dict(found) for found in pipe(text)] for text in texts]


@pytest.mark.parametrize("aggregation", ["simple", "max"])
def test_entities_are_those_of_the_library_s_pipeline(engine: penstock.Engine, source: Path, aggregation: str) -> None:
    result = engine.run("mine", texts=TEXTS, aggregation=aggregation)
    expected = theirs(source, TEXTS, aggregation_strategy=aggregation)
    assert sum(map(len, expected)) > 3
    for text, found, known in zip(TEXTS, result.data["answers"], expected, strict=True):
        assert [(one["label"], one["start"], one["end"]) for one in found] == [
            (one["entity_group"], one["start"], one["end"]) for one in known
        ]
        assert [one["score"] for one in found] == pytest.approx([float(one["score"]) for one in known])
        assert all(one["text"] == text[one["start"] : one["end"]] for one in found)


def test_a_text_longer_than_the_network_s_input_is_read_to_its_end(engine: penstock.Engine, source: Path) -> None:
    [found] = engine.run("mine", texts=[LONG]).data["answers"]
    [known] = theirs(source, [LONG], aggregation_strategy="simple", stride=6)
    assert [(one["label"], one["start"], one["end"]) for one in found] == [
        (one["entity_group"], one["start"], one["end"]) for one in known
    ]
    assert found[-1]["end"] > len(LONG) * 0.8


def test_an_unknown_aggregation_is_refused_by_its_field(engine: penstock.Engine) -> None:
    with pytest.raises(InvalidInput) as caught:
        engine.run("mine", texts=["a"], aggregation="none")
    assert [issue.pointer for issue in caught.value.errors] == ["/input/aggregation"]
