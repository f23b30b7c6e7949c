"""Tokenizer: converts texts to token ids with the `tokenizer.json` of a model's directory.

In the text of users, `</s>` or `<image>` never becomes the special token of that name: a space is inserted into it,
which works with every tokenizer. The library's `encode_special_tokens` fails where the name is also an ordinary token
of the vocabulary, as in T5's.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Encoding, Tokenizer, normalizers

from penstock.errors import ModelUnavailable
from penstock.models import Limits, Model
from penstock.processors.directory import read_config

#: Bounds from this value on mean "no bound"; transformers writes 10^30.
_NO_BOUND = 10**9


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text's tokens."""

    ids: list[int]
    #: True if the text was too long and was cut.
    truncated: bool = False
    #: The number of each token's text in a pair, 0 or 1; empty for a single text.
    types: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's tokenizer, and the model's maximum number of tokens; None = no maximum."""

    tokenizer: Tokenizer
    max_tokens: int | None
    #: Texts of the special tokens by id.
    special: Mapping[int, str] = field(default_factory=dict)

    def cut(self, text: str, *, prompt: str = "") -> Tokens:
        """Return a text's tokens, cut to the model's maximum; special tokens at the end are kept.

        `prompt` comes before the text. It is the model's own: its special tokens stay.
        """
        encoding = self.tokenizer.encode(prompt + self.plain(text))
        return Tokens(encoding.ids, truncated=bool(encoding.overflowing))

    def cut_pair(self, first: str, second: str) -> Tokens:
        """Return the tokens of two texts together; the longer one is cut to the model's maximum."""
        encoding = self.tokenizer.encode(self.plain(first), self.plain(second))
        return Tokens(encoding.ids, truncated=bool(encoding.overflowing), types=encoding.type_ids)

    def shortened(self, text: str, tokens: int) -> str:
        """Return the beginning of a text, of this number of tokens at most."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        return text if len(encoding.ids) <= tokens else text[: encoding.offsets[tokens - 1][1]]

    def beginning(self, prompt: str) -> int:
        """Return the number of tokens of a text's beginning, with the special tokens before it."""
        ids = self.tokenizer.encode(prompt).ids if prompt else []
        return len(ids) - (bool(ids) and ids[-1] in self.special)

    def encode(self, text: str) -> list[int]:
        """Return all of a text's tokens, with the special tokens that the model expects around a text."""
        ids: list[int] = self.tokenizer.encode(self.plain(text)).ids
        return ids

    def encode_rendered(self, text: str) -> list[int]:
        """Return the tokens of a chat template's output, including special ones; users' text must be `plain`."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def plain(self, text: str) -> str:
        """Return the text with a space inside each special token; a special token that remains is removed."""
        filler = " "
        while found := list(self._special_spans(text)):
            for start, end in reversed(found):
                text = text[: start + 1] + filler + text[start + 1 :] if filler else text[:start] + text[end:]
            filler = ""
        return text

    def _special_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the place of each special token. Unknown text also gets a special token, so texts are compared."""
        if not self.special:
            return
        encoding: Encoding = self.tokenizer.encode(text, add_special_tokens=False)
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self.special and _same(text[start:end], self.special[number]):
                yield start, end

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
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
    except Exception as error:  # the library raises plain exceptions only
        raise ModelUnavailable(f"model {model.name!r}: its tokenizer.json cannot be read: {error}") from error
    if read_config(model, "sentence_bert_config.json").get("do_lower_case") is True:
        own = tokenizer.normalizer
        tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([] if own is None else [own])])
    most = max_tokens(model, model.limits)
    # The runner pads prompts of different lengths, because only the runner knows which prompts share a batch.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if truncate and most is not None:
        tokenizer.enable_truncation(most)
    added = tokenizer.get_added_tokens_decoder()
    return Vocabulary(tokenizer, most, {number: token.content for number, token in added.items() if token.special})


def max_tokens(model: Model, limits: Limits) -> int | None:
    """Return the smallest maximum in the limits and the model's directory, or None."""
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
    """Return True if a text equals a token, apart from case, width and surrounding spaces."""
    return _folded(text) == _folded(token)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().casefold()
