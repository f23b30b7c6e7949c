"""Incremental detokenizer: streams the text of a growing list of tokens.

It returns each character once, only whole characters, and no part of a stop string. `DecodeStream` of tokenizers raises
"Invalid prefix" where tokens are bytes of no character: in 163 of 200 texts of 40 random tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.processors.language.tokens import Vocabulary

#: Number of the prompt's last tokens that are decoded with the first new ones: they decide about a leading space.
_CONTEXT_TOKENS = 6
#: The character that decoders write for bytes that are no character, or not yet.
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text after a prompt, decoded as its tokens arrive."""

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._context = list(prompt[-_CONTEXT_TOKENS:])
        self._decoded = ""
        self._released = 0
        self._ids = self._context
        # The next decoding starts at token `_start`; tokens before `_end` are in `_decoded` already.
        self._start, self._end = 0, len(self._context)
        self.stopped = False

    @property
    def text(self) -> str:
        """All text returned so far."""
        return self._decoded[: self._released]

    @property
    def tokens(self) -> int:
        """Number of new tokens."""
        return len(self._ids) - len(self._context)

    def update(self, token_ids: Sequence[int]) -> str:
        """Decode all new tokens so far, and return the text that was not returned before."""
        if self.stopped:
            return ""
        self._ids = [*self._context, *map(int, token_ids)]
        self._decode(final=False)
        return self._release(len(self._decoded) - stop_overlap(self._decoded, self._stops))

    def finish(self) -> str:
        """Return the rest of the text, after the last token; bytes of an incomplete character are removed."""
        if self.stopped:
            return ""
        self._decode(final=True)
        return self._release(len(self._decoded))

    def _decode(self, *, final: bool) -> None:
        known = self._vocabulary.decode(self._ids[self._start : self._end])
        text = self._vocabulary.decode(self._ids[self._start :])
        if final:
            text = text.rstrip(_REPLACEMENT)
        if len(text) > len(known) and not text.endswith(_REPLACEMENT):
            self._decoded += text[len(known) :]
            self._start, self._end = self._end, len(self._ids)

    def _release(self, upto: int) -> str:
        found = [(at + len(stop), at) for stop in self._stops if (at := self._decoded.find(stop)) >= 0]
        if found:  # the stop string that ends first, even if several tokens arrive at once
            self.stopped, upto = True, min(found)[1]
        start, self._released = self._released, max(upto, self._released)
        return self._decoded[start : self._released]


def stop_overlap(text: str, stops: Sequence[str]) -> int:
    """Return the number of characters at the end of a text that could start a stop string."""
    longest = max(map(len, stops), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in stops)), 0)
