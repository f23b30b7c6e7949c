"""Continuous batching of text generation: a step is one pass of the network over all texts, whatever their lengths.

The texts share the reading of the weights, which is most of a step's time. The other texts of a pass change the last
bits of a text's logits. So tokens equal those of `generation` except where two tokens are almost equally likely.

A text gets pages for all its tokens before its first step, or waits. Prompts are read in chunks beside texts that
already grow, so that a long prompt delays another text's next token by at most a chunk.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from penstock.errors import InvalidInput
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Runner, Step
from penstock.workers.engine.torch.device import NetworkRunner, TorchDevice, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.generation import check_cache, checked_prompt, done, ends_of
from penstock.workers.engine.transformers.pages import PAGE_TOKENS, Chunk, Pages, Place, open_pages, pages_bytes
from penstock.workers.engine.transformers.sampling import Sampling

#: Default of `options.cache_tokens`, the tokens of all pages, unless the texts of a full batch need less.
CACHE_TOKENS = 16_384


@dataclass(frozen=True, slots=True)
class PagedText:
    """The state of a text. Later states share its place, which is freed with the last of them."""

    prompt: tuple[int, ...]
    sampling: Sampling
    place: Place
    new: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.prompt) + len(self.new)

    def part(self, start: int, count: int) -> Sequence[int]:
        """Return `count` tokens from `start` on."""
        return (*self.prompt, *self.new)[start : start + count]


@dataclass(frozen=True, slots=True)
class ContinuousRunner(NetworkRunner):
    """A runner of texts in shared passes, with the prompts and outputs of `GenerationRunner`."""

    pages: Pages
    vocabulary: int
    max_tokens: int | None
    #: Tokens of the longest text that fits into the pages.
    room: int
    ends: frozenset[int]

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all texts: they advance together."""
        return "texts"

    def admit(self, prompt: Prompt) -> PagedText:
        """Return the prompt's tokens with a place, which has no pages yet."""
        ids, sampling = checked_prompt(prompt, self.vocabulary, self.max_tokens)
        tokens = len(ids) + sampling.max_new_tokens
        if tokens > self.room:
            raise InvalidInput(
                f"this model has room for texts of {self.room} tokens: the prompt has {len(ids)} and "
                f"{sampling.max_new_tokens} more are asked for"
            )
        return PagedText(tuple(ids.tolist()), sampling, self.pages.place(tokens))

    def step(self, states: Sequence[PagedText]) -> Sequence[Step]:
        """Read new tokens of all texts, up to the limit of a pass, and choose a token for each text read to its end."""
        chunks = self._chunks(states)
        asked = [at for at, chunk in chunks.items() if chunk.last]
        tokens: dict[int, int] = {}
        if chunks:
            with self.device.running(grows=True):
                logits = self.pages.read(list(chunks.values()))
                tokens = dict(zip(asked, _chosen(logits, [states[at] for at in asked]), strict=True))
        return [self._grown(state, tokens.get(at)) for at, state in enumerate(states)]

    def close(self) -> None:
        """Free the device's memory."""
        self.pages.close()
        self.device.free(self.network)

    def _chunks(self, states: Sequence[PagedText]) -> dict[int, Chunk]:
        """Return the chunks of the next pass, by the texts' positions in the batch."""
        seated = self._seated(states)
        # At least the last token is read again: the next token follows from its logits.
        starts = [min(self.pages.kept(states[at].place), len(states[at]) - 1) for at in seated]
        unread = [len(states[at]) - start for at, start in zip(seated, starts, strict=True)]
        counts = shares(unread, self.pages.step_tokens)
        return {
            at: Chunk(states[at].place, start, states[at].part(start, count), last=count == left)
            for at, start, left, count in zip(seated, starts, unread, counts, strict=True)
            if count
        }

    def _seated(self, states: Sequence[PagedText]) -> list[int]:
        """Allot pages to waiting texts in order, and return the positions of texts with pages."""
        seated, waiting = [], False
        for at, state in enumerate(states):
            if self.pages.has(state.place) or (not waiting and self.pages.allot(state.place)):
                seated.append(at)
            else:
                waiting = True
        return seated

    def _grown(self, state: PagedText, token: int | None) -> Step:
        if token is None:
            return Continue(state)
        new = (*state.new, token)
        if token not in self.ends and len(new) < state.sampling.max_new_tokens:
            return Continue(replace(state, new=new), Output({"token_ids": list(new)}, partial=True))
        self.pages.free(state.place)
        return done(state.new, "stop") if token in self.ends else done(new, "length")


def load_continuous(directory: HubDirectory) -> Runner:
    """Load a network for shared passes; raise `ModelUnavailable` if the library cannot batch it."""
    model = directory.model
    device = TorchDevice.of(model)
    network = directory.load("AutoModelForCausalLM", dtype=device.dtype)
    check_cache(network)
    device.place(network)
    text = network.config.get_text_config()
    most = getattr(text, "max_position_embeddings", None)
    tokens = _cache_tokens(model, most)
    pages = open_pages(network, device, texts=model.max_batch, tokens=tokens, vocabulary=text.vocab_size)
    return ContinuousRunner(
        network,
        device,
        pages=pages,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network) + pages.memory_bytes,
        vocabulary=text.vocab_size,
        max_tokens=most,
        room=pages.capacity(most),
        ends=ends_of(network),
    )


def cache_bytes_of(model: Model, config: Any) -> int:
    """Return the bytes of a model's pages, from its network's text config."""
    tokens = _cache_tokens(model, getattr(config, "max_position_embeddings", None))
    return pages_bytes(config, texts=model.max_batch, tokens=tokens, dtype=getattr(torch, model.dtype))


def shares(unread: Sequence[int], most: int) -> list[int]:
    """Return how many tokens of each text a pass of at most `most` tokens reads.

    Growing texts have one unread token, which is always read; the others share the rest in order.
    """
    left = most - sum(count == 1 for count in unread)
    counts = []
    for count in unread:
        counts.append(1 if count == 1 else min(count, left))
        left -= 0 if count == 1 else counts[-1]
    return counts


def _chosen(logits: Tensor, states: Sequence[PagedText]) -> list[int]:
    """Return each text's next token. The likeliest tokens of all texts are copied from the device at once."""
    likeliest: list[int] = logits.argmax(dim=-1).tolist()
    return [
        token if state.sampling.temperature == 0 else state.sampling.choose(row, len(state.new))
        for token, row, state in zip(likeliest, logits, states, strict=True)
    ]


def _cache_tokens(model: Model, most: int | None) -> int:
    """Return the number of tokens of all pages."""
    asked: int | None = model.options.get("cache_tokens")
    needed = CACHE_TOKENS if most is None else model.max_batch * (most + PAGE_TOKENS)
    return min(CACHE_TOKENS, needed) if asked is None else asked
