"""Texts to token ids, by the `tokenizer.json` of a model's directory.

What people type is text: `</s>` or `<image>` in it never becomes the special token of that name. It gets a space
inside, which works with every kind of tokenizer; `encode_special_tokens` of the library does not where the name is also
an ordinary piece of the vocabulary, as in T5's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from penstock.errors import ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.directory import read_config

#: Of configs that know no bound; transformers writes 10^30 there.
_NO_BOUND = 10**9


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's tokens."""

    ids: list[int]
    #: Whether some of the text was cut off.
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokenizer and how many tokens the model takes; None = any number."""

    tokenizer: Tokenizer
    max_tokens: int | None
    #: The special tokens, by id, as they would be typed.
    special: Mapping[int, str] = field(default_factory=dict)

    def cut(self, text: str) -> Tokens:
        """Return a text's tokens, cut to what the model takes; special tokens at the end stay."""
        encoding = self.tokenizer.encode(self.plain(text))
        return Tokens(encoding.ids, truncated=bool(encoding.overflowing))

    def encode(self, text: str) -> list[int]:
        """Return all of a text's tokens, with those that the model expects around it."""
        ids: list[int] = self.tokenizer.encode(self.plain(text)).ids
        return ids

    def encode_written(self, text: str) -> list[int]:
        """Return the tokens of what a template wrote, special ones too: what people typed went through `plain`."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def plain(self, text: str) -> str:
        """Return the text with a space inside whatever would become a special token; what still would is cut out."""
        filler = " "
        while found := list(self._typed(text)):
            for start, end in reversed(found):
                text = text[: start + 1] + filler + text[start + 1 :] if filler else text[:start] + text[end:]
            filler = ""
        return text

    def _typed(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where a text has special tokens. That of what is not known stands for all kinds of text, too."""
        if not self.special:
            return
        encoding: Encoding = self.tokenizer.encode(text, add_special_tokens=False)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self.special and _same(text[start:end], self.special[number]):
                yield start, end

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens; special ones are left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def read_vocabulary(model: Model, *, truncate: bool) -> Vocabulary:
    """Return the model's tokenizer; raise `ModelUnavailable` if there is none."""
    path = Path(model.source) / "tokenizer.json"
    if not path.is_file():
        kind = read_config(model).get("model_type")
        about = "" if kind is None else f"; its model_type is {kind!r}"
        raise ModelUnavailable(f"model {model.name!r} lacks the file tokenizer.json{about}")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing more special
        raise ModelUnavailable(f"model {model.name!r}: its tokenizer.json cannot be read: {error}") from error
    most = max_tokens(model, model.limits)
    # Prompts of different lengths are padded by the runner, where it knows what shares a batch.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if truncate and most is not None:
        tokenizer.enable_truncation(most)
    added = tokenizer.get_added_tokens_decoder()
    return Vocabulary(tokenizer, most, {number: token.content for number, token in added.items() if token.special})


def max_tokens(model: Model, limits: Limits) -> int | None:
    """Return the smallest of the bounds that the limits and the model's directory set, or None."""
    config = read_config(model)
    bounds = (
        limits.max_tokens,
        read_config(model, "sentence_bert_config.json").get("max_seq_length"),
        read_config(model, "tokenizer_config.json").get("model_max_length"),
        config.get("max_position_embeddings"),
        (config.get("text_config") or {}).get("max_position_embeddings"),
    )
    return min((int(bound) for bound in bounds if bound is not None and bound < _NO_BOUND), default=None)


def _same(text: str, token: str) -> bool:
    """Whether a text is a token's name, whatever a tokenizer makes of case, width and spaces around."""
    return _folded(text) == _folded(token)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().casefold()
