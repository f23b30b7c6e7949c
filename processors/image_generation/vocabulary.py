"""The tokenizer of CLIP's text encoder in the folder `tokenizer/` of diffusers, with or without `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from penstock.errors import ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.language.tokens import Vocabulary

#: Default tokens for the end and the start of a text.
_END, _START = "<|endoftext|>", "<|startoftext|>"
#: CLIP's pattern for words, from its paper's code: contractions, words, single digits, runs of other signs.
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


@dataclass(frozen=True, slots=True)
class Padded:
    """A text's tokens, padded to the encoder's length."""

    ids: list[int]
    #: True if the text was too long and was cut.
    truncated: bool


@dataclass(frozen=True, slots=True)
class PaddedVocabulary:
    """A tokenizer that cuts or pads all texts to one length."""

    vocabulary: Vocabulary
    length: int
    #: Id of the padding token.
    padding: int

    def cut(self, text: str) -> Padded:
        """Return a text's tokens, cut or padded; special tokens at the end are kept."""
        tokens = self.vocabulary.cut(text)
        return Padded([*tokens.ids, *[self.padding] * (self.length - len(tokens.ids))], tokens.truncated)


def read_padded_vocabulary(model: Model) -> PaddedVocabulary:
    """Return the tokenizer of a pipeline's directory; raise `ModelUnavailable` naming the missing or broken part."""
    config = read_config(model, "tokenizer/tokenizer_config.json")
    length = _length(model, config)
    tokenizer = _read(model, Path(model.source) / "tokenizer", config)
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    padding = tokenizer.token_to_id(_content(config.get("pad_token")) or _END)
    if padding is None:
        raise ModelUnavailable(f"model {model.name!r}: its tokenizer lacks its own padding token")
    added = tokenizer.get_added_tokens_decoder()
    special = {number: token.content for number, token in added.items() if token.special}
    return PaddedVocabulary(Vocabulary(tokenizer, length, special), length, padding)


def _length(model: Model, config: Mapping[str, Any]) -> int:
    named = config.get("model_max_length")
    positions = read_config(model, "text_encoder/config.json").get("max_position_embeddings")
    # Configs without a bound contain 10^30.
    bounds = [bound for bound in (named, positions) if isinstance(bound, int) and 2 < bound < 10**9]
    if not bounds:
        raise ModelUnavailable(f"model {model.name!r}: tokenizer/tokenizer_config.json has no `model_max_length`")
    return min(bounds)


def _read(model: Model, folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    try:
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return _from_merges(folder, config)
    except Exception as error:  # the library raises plain exceptions only
        raise ModelUnavailable(f"model {model.name!r}: its tokenizer cannot be read: {error}") from error
    raise ModelUnavailable(
        f"model {model.name!r} lacks the file tokenizer/tokenizer.json, or vocab.json and merges.txt"
    )


def _from_merges(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer from a vocabulary and its merges, as in most published Stable Diffusion models."""
    lines = (folder / "merges.txt").read_text(encoding="utf-8").strip().splitlines()
    merges = [_pair(line) for line in lines if line and not line.startswith("#version")]
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    end, start = (_content(config.get(name)) or usual for name, usual in (("eos_token", _END), ("bos_token", _START)))
    tokenizer = Tokenizer(
        BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="</w>", fuse_unk=False, unk_token=_END)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    split = pre_tokenizers.Split(Regex(_WORDS), behavior="removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.add_special_tokens([start, end])
    last, first = ((name, int(tokenizer.token_to_id(name) or 0)) for name in (end, start))
    tokenizer.post_processor = processors.RobertaProcessing(last, first, trim_offsets=False, add_prefix_space=False)
    return tokenizer


def _pair(line: str) -> tuple[str, str]:
    first, second = line.split(" ")
    return first, second


def _content(token: Any) -> str | None:
    """Return a special token's text; configs contain the text or an object with it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
