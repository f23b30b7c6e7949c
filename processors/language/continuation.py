"""From a growing list of tokens to the text that may be told: whole characters, once, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.processors.language.tokens import Vocabulary

#: Tokens of the prompt that are decoded with the first new ones: whether a text begins with a space depends on them.
_BEFORE = 6
#: What decoders put where the bytes are no character, or not yet.
_BROKEN = "\ufffd"


class Continuation:
    """The text that follows a prompt."""

    def __init__(self, vocabulary: Vocabulary, prompt: Sequence[int], stops: Sequence[str] = ()) -> None:
        self._vocabulary = vocabulary
        self._stops = tuple(stops)
        self._before = list(prompt[-_BEFORE:])
        self._decoded = ""
        self._told = 0
        self._ids = self._before
        # What is decoded next starts at `_start`; up to `_end` it is in `_decoded` already.
        self._start, self._end = 0, len(self._before)
        self.stopped = False

    @property
    def text(self) -> str:
        """Everything told so far."""
        return self._decoded[: self._told]

    @property
    def tokens(self) -> int:
        """How many tokens the text was made of."""
        return len(self._ids) - len(self._before)

    def grow(self, token_ids: Sequence[int]) -> str:
        """Take all new tokens so far, and return what may be told now and was not before."""
        if self.stopped:
            return ""
        self._ids = [*self._before, *map(int, token_ids)]
        self._decode(final=False)
        return self._tell(len(self._decoded) - held_back(self._decoded, self._stops))

    def finish(self) -> str:
        """Return the rest, now that no tokens follow; bytes that never became a character are left out."""
        if self.stopped:
            return ""
        self._decode(final=True)
        return self._tell(len(self._decoded))

    def _decode(self, *, final: bool) -> None:
        known = self._vocabulary.decode(self._ids[self._start : self._end])
        text = self._vocabulary.decode(self._ids[self._start :])
        if final:
            text = text.rstrip(_BROKEN)
        if len(text) > len(known) and not text.endswith(_BROKEN):
            self._decoded += text[len(known) :]
            self._start, self._end = self._end, len(self._ids)

    def _tell(self, upto: int) -> str:
        found = [(at + len(stop), at) for stop in self._stops if (at := self._decoded.find(stop)) >= 0]
        if found:  # the one that is complete first, however many tokens come at a time
            self.stopped, upto = True, min(found)[1]
        told, self._told = self._told, max(upto, self._told)
        return self._decoded[told : self._told]


def held_back(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of a text could be the beginning of a stop string."""
    longest = max(map(len, stops), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in stops)), 0)
