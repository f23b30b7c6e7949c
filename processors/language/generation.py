"""The text generation processor: a prompt or a conversation in, its continuation out, told while it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from penstock.errors import InvalidInput
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options, read_config
from penstock.processors.language.chat import read_chat_template
from penstock.processors.language.continuation import Continuation
from penstock.processors.language.embeds import EMBEDS_NAME, embedding_width, read_embeddings
from penstock.processors.language.request import GenerationRequest
from penstock.processors.language.tokens import Vocabulary, read_vocabulary
from penstock.processors.outputs import OUTPUTS
from penstock.reports import Issue

#: The network's input: int64 (tokens,); and its output: a list of the new token ids so far.
INPUT_NAME, OUTPUT_NAME = "input_ids", "token_ids"
#: Why the runner made no more tokens: "stop" (the model's end token) or "length".
REASON_NAME = "finish_reason"
#: Where a request does not say.
_NEW_TOKENS = 256
#: Of a warm-up: a text of ordinary length, and enough steps to have run each kind.
_DUMMY_TOKENS, _DUMMY_STEPS = 1024, 8


class Wish(Protocol):
    """How a request wants its text continued."""

    @property
    def max_new_tokens(self) -> int | None:
        """At most so many tokens; None = what there is room for."""
        ...

    @property
    def temperature(self) -> float:
        """0 = always the likeliest token."""
        ...

    @property
    def top_p(self) -> float:
        """The share that is drawn from."""
        ...

    @property
    def seed(self) -> int:
        """What choices are drawn with."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What `post_process` needs of the first half."""

    #: The prompt's tokens, and how many there are; of embeddings nobody knows which.
    prompt: tuple[int, ...]
    given: int
    stop: tuple[str, ...]


class TextGeneration:
    """Continues a text. What follows the prompt directly belongs to the result, a space at its beginning too."""

    request = GenerationRequest
    outputs = (OUTPUTS.spec("text", "the result's text; its pieces are events while it is made"),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._vocabulary = read_vocabulary(model, truncate=False)
        self._template = read_chat_template(model)
        self._width = embedding_width(read_config(model))

    def pre_process(self, request: GenerationRequest, media: Media) -> Prepared[Context]:
        """Return the one prompt."""
        most, stop = self._vocabulary.max_tokens, tuple(request.stop)
        if request.prompt_embeds is not None:
            embeds = read_embeddings(media.path(request.prompt_embeds), width=self._width, most=most)
            prompt = _continuing({EMBEDS_NAME: embeds}, len(embeds), request, most)
            return Prepared(iter([prompt]), 1, prompt.cost, Context((), len(embeds), stop))
        ids = self._encode(request)
        prompt = to_continue(ids, request, most)
        return Prepared(iter([prompt]), 1, prompt.cost, Context(tuple(ids), len(ids), stop))

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return the text, and `{"finish_reason", "usage"}` as data."""
        return told(outputs, self._vocabulary, context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a prompt that leaves room for a few tokens."""
        length = min(_DUMMY_TOKENS, self._vocabulary.max_tokens or _DUMMY_TOKENS)
        words = self._vocabulary.encode("a " * length)[: max(1, length - 2 * _DUMMY_STEPS)]
        return Dummy({"prompt": self._vocabulary.decode(words), "max_new_tokens": min(_DUMMY_STEPS, length - 1)})

    def _encode(self, request: GenerationRequest) -> list[int]:
        if request.messages is None:
            ids = self._vocabulary.encode(request.prompt or "")
        elif self._template is None:
            detail = f"model {self._model.name!r} has no chat template: give `prompt`"
            raise InvalidInput(detail, errors=[Issue("/input/messages", detail)])
        else:
            messages = [{"role": m.role, "content": self._vocabulary.plain(m.content)} for m in request.messages]
            ids = self._vocabulary.encode_written(self._template.render(messages))
        if not ids:
            raise InvalidInput("The prompt has no tokens.")
        return ids


def to_continue(ids: Sequence[int], request: Wish, most: int | None) -> Prompt:
    """Return the prompt that asks for a text's continuation; its cost is all tokens that there may be.

    Raises `InvalidInput` where prompt and wish are more than the `most` tokens that the model takes.
    """
    return _continuing({INPUT_NAME: np.asarray(ids, dtype=np.int64)}, len(ids), request, most)


def told(outputs: Iterator[Output], vocabulary: Vocabulary, context: Context, sink: ArtifactSink) -> Result:
    """Say the continuation while it is made; return it with `{"finish_reason", "usage"}` as data."""
    text = Continuation(vocabulary, context.prompt, context.stop)
    reason = "stop"
    for output in outputs:
        piece = text.grow(output.data[OUTPUT_NAME])
        if not output.partial:
            piece += text.finish()
            reason = str(output.data[REASON_NAME])
        if piece:
            sink.say(piece)
        if text.stopped:
            _close(outputs)
            reason = "stop"
            break
    made, given = text.tokens, context.given
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    return Result(text=text.text, data={"finish_reason": reason, "usage": usage})


def _continuing(beginning: Mapping[str, Any], given: int, request: Wish, most: int | None) -> Prompt:
    new = _room(given, request.max_new_tokens, most)
    wish = {
        "max_new_tokens": new,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
    }
    return Prompt({**beginning, **wish}, given + new)


def _room(given: int, wanted: int | None, most: int | None) -> int:
    left = None if most is None else most - given
    if left is not None and left < (wanted or 1):
        raise InvalidInput(
            f"The prompt has {given} tokens and {wanted or 1} more were asked for: the model takes {most} in all."
        )
    return wanted or min(_NEW_TOKENS, left or _NEW_TOKENS)


def _close(outputs: Iterator[Output]) -> None:
    close = getattr(outputs, "close", None)
    if close is not None:
        close()
