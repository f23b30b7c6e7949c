"""Small model directories, and numpy instead of networks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel

from penstock.models import Model
from penstock.processors.base import Output, Prompt


def make_model(source: Path, processor: str, **fields: Any) -> Model:
    """Return a record of a model whose directory is `source`."""
    names = {"name": "toy", "title": "A toy", "runner": "fake", "processor": processor, "revision": "1"}
    return Model(**{**names, "source": str(source), **fields})


def write_json(folder: Path, name: str, data: Mapping[str, Any]) -> None:
    """Write a JSON file of a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(data))


def image_directory(folder: Path, labels: Mapping[int, str], **config: Any) -> Path:
    """Write the files of an image model except its weights; images are resized to 8 x 8, with values in 0..1."""
    preprocessor = {
        "image_processor_type": "ViTImageProcessor",
        "size": {"height": 8, "width": 8},
        "do_normalize": False,
    }
    write_json(folder, "preprocessor_config.json", preprocessor)
    write_json(folder, "config.json", {"id2label": labels, **config})
    return folder


def words_directory(folder: Path, *, max_tokens: int | None = None) -> Path:
    """Write a tokenizer of whole words between [ and ], with padding, as hub directories often have it."""
    words = ["?", "[", "]", "the", "cat", "sat", "on", "mat"]
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[ $A ]", pair="[ $A ] $B ]", special_tokens=[("[", 1), ("]", 2)]
    )
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(3)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder, "config.json", {} if max_tokens is None else {"max_position_embeddings": max_tokens})
    return folder


def bytes_directory(folder: Path, *, max_tokens: int = 64, template: str | None = None) -> Path:
    """Write a tokenizer with one token per byte (256 is the end token), so that characters have several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder, "config.json", {"max_position_embeddings": max_tokens})
    config = {"eos_token": {"__type": "AddedToken", "content": "<end>"}, "model_max_length": 10**30}
    write_json(folder, "tokenizer_config.json", config if template is None else {**config, "chat_template": template})
    return folder


def each(network: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> Callable[[Iterator[Prompt]], Iterator[Output]]:
    """Return an engine that answers each prompt in one pass."""
    return lambda prompts: (Output(network(prompt.data)) for prompt in prompts)
