"""The tokens and pixels of an attempt, counted where prompts enter the engine and outputs leave it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.processors.base import Output, Prompt

#: Inputs that are an image, tile or frame: the cost of their prompts is in pixels.
_IMAGES = ("pixels", "image")
_TOKENS_IN, _TOKENS_OUT = "input_ids", "token_ids"


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts so far; None for a unit that the attempt has not used."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    pixels: int | None = None

    def prompt(self, prompt: Prompt) -> Counted:
        """Return the counts after a further prompt."""
        found = self
        if _TOKENS_IN in prompt.data:
            found = replace(found, tokens_in=(self.tokens_in or 0) + len(prompt.data[_TOKENS_IN]))
        if any(name in prompt.data for name in _IMAGES):
            found = replace(found, pixels=(self.pixels or 0) + prompt.cost)
        return found

    def output(self, output: Output) -> Counted:
        """Return the counts after a further final output."""
        if _TOKENS_OUT not in output.data:
            return self
        return replace(self, tokens_out=(self.tokens_out or 0) + len(output.data[_TOKENS_OUT]))

    def result(self, data: Mapping[str, Any] | None) -> Counted:
        """Return the counts of a finished job: those that its result states win, because its text may end earlier."""
        stated = (data or {}).get("usage")
        if not isinstance(stated, Mapping):
            return self
        tokens_in, tokens_out = stated.get("prompt_tokens"), stated.get("completion_tokens")
        return replace(
            self,
            tokens_in=tokens_in if isinstance(tokens_in, int) else self.tokens_in,
            tokens_out=tokens_out if isinstance(tokens_out, int) else self.tokens_out,
        )
