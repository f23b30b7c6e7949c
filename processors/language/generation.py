"""Text generation: continues a prompt or answers a conversation, and streams the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput, Issue
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options, read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.chat import read_chat_template
from penstock.processors.language.detokenizer import Detokenizer
from penstock.processors.language.request import GenerationRequest
from penstock.processors.language.tokens import Vocabulary, read_vocabulary
from penstock.processors.outputs import OUTPUTS
from penstock.processors.tensors.description import described
from penstock.processors.tensors.reading import open_tensors, refuse_nan

#: The network's input: int64 (tokens,). Its output: a list of the new token ids so far.
INPUT_NAME, OUTPUT_NAME = "input_ids", "token_ids"
#: Reason for the end of the text: "stop" (the model's end token) or "length".
REASON_NAME = "finish_reason"
#: The values that a network needs to continue a text, and those that it gives.
GENERATED = IOSignature(
    prompt={
        INPUT_NAME: "int64 (tokens)",
        **dict.fromkeys(("max_new_tokens", "temperature", "top_p", "seed"), "number"),
    },
    output={OUTPUT_NAME: "list", REASON_NAME: "text"},
)
#: Default maximum of new tokens.
_NEW_TOKENS = 256
#: Tokens of a warm-up: a prompt of ordinary length, and enough new tokens to run every kind of step.
_DUMMY_TOKENS, _DUMMY_STEPS = 1024, 8
#: The network's input instead of token ids: float32 (tokens, hidden size).
EMBEDS_NAME = "inputs_embeds"
#: The dtypes that convert to float32 without rounding.
_DTYPES = ("float32", "float16", "bfloat16")
#: Keys of `config.json` for the length of a token's vector; OPT's differs from the size of its layers.
_WIDTHS = ("word_embed_proj_dim", "hidden_size", "n_embd", "d_model", "emb_dim")


class SamplingParameters(Protocol):
    """A request's parameters for the choice of tokens."""

    @property
    def max_new_tokens(self) -> int | None:
        """Maximum number of new tokens; None = a default within the model's maximum."""
        ...

    @property
    def temperature(self) -> float:
        """Temperature; 0 = always the likeliest token."""
        ...

    @property
    def top_p(self) -> float:
        """Cumulative probability of the tokens that are sampled from."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the random choices."""
        ...


@dataclass(frozen=True, slots=True)
class TextGenerationContext:
    """Request state for `post_process`."""

    #: The prompt's tokens (empty for embeddings), and their number.
    prompt: tuple[int, ...]
    given: int
    stop: tuple[str, ...]


class TextGeneration:
    """The text generation processor. A space at the beginning of the generated text is kept."""

    request = GenerationRequest
    outputs = (OUTPUTS.spec("text", "the result's text, which is streamed as events while it is made"),)
    io_signatures = (GENERATED,)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._vocabulary = read_vocabulary(model, truncate=False)
        self._template = read_chat_template(model)
        self._width = embedding_width(read_config(model))
        #: True: answers do not continue the prompt's tokens, and have as many places as the prompt.
        self._apart = read_config(model).get("is_encoder_decoder") is True

    def pre_process(self, request: GenerationRequest, media: Media) -> Prepared[TextGenerationContext]:
        """Return one prompt."""
        most, stop = self._vocabulary.max_tokens, tuple(request.stop)
        if request.prompt_embeds is not None:
            embeds = read_prompt_embeddings(media.path(request.prompt_embeds), width=self._width, most=most)
            prompt = _prompt({EMBEDS_NAME: embeds}, len(embeds), request, most)
            return Prepared(iter([prompt]), 1, prompt.cost, TextGenerationContext((), len(embeds), stop))
        ids = self._encode(request)
        prompt = generation_prompt(ids, request, most, apart=self._apart)
        before = () if self._apart else tuple(ids)
        return Prepared(iter([prompt]), 1, prompt.cost, TextGenerationContext(before, len(ids), stop))

    def post_process(self, outputs: Iterator[Output], context: TextGenerationContext, sink: ArtifactSink) -> Result:
        """Return the text, and `{"finish_reason", "usage"}` as data."""
        return generation_result(outputs, self._vocabulary, context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a long prompt with a few new tokens."""
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
            ids = self._vocabulary.encode_rendered(self._template.render(messages))
        if not ids:
            raise InvalidInput("The prompt has no tokens.")
        return ids


def generation_prompt(
    ids: Sequence[int], request: SamplingParameters, most: int | None, *, apart: bool = False
) -> Prompt:
    """Return the engine's prompt for a text; its cost is the prompt's tokens plus the maximum of new ones.

    Raises `InvalidInput` if this sum is more than the model's maximum, `most`; of an answer that is `apart` from the
    prompt, if one of the two is.
    """
    return _prompt({INPUT_NAME: np.asarray(ids, dtype=np.int64)}, len(ids), request, most, apart=apart)


def generation_result(
    outputs: Iterator[Output], vocabulary: Vocabulary, context: TextGenerationContext, sink: ArtifactSink
) -> Result:
    """Stream the generated text to the sink; return it with `{"finish_reason", "usage"}` as data."""
    text = Detokenizer(vocabulary, context.prompt, context.stop)
    reason = "stop"
    for output in outputs:
        part = text.update(output.data[OUTPUT_NAME])
        if not output.partial:
            part += text.finish()
            reason = str(output.data[REASON_NAME])
        if part:
            sink.say(part)
        if text.stopped:
            _close(outputs)
            reason = "stop"
            break
    made, given = text.tokens, context.given
    usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    return Result(text=text.text, data={"finish_reason": reason, "usage": usage})


def _prompt(
    beginning: Mapping[str, Any], given: int, request: SamplingParameters, most: int | None, *, apart: bool = False
) -> Prompt:
    if apart and most is not None and given > most:
        raise InvalidInput(f"The prompt has {given} tokens; the model takes {most}. That is {given - most} too many.")
    new = _room(0 if apart else given, request.max_new_tokens, most)
    sampling = {
        "max_new_tokens": new,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "seed": request.seed,
    }
    return Prompt({**beginning, **sampling}, given + new)


def _room(given: int, wanted: int | None, most: int | None) -> int:
    left = None if most is None else most - given
    if left is not None and left < (wanted or 1):
        raise InvalidInput(
            f"The prompt has {given} tokens and needs room for {wanted or 1} more; the model takes {most} in total. "
            f"That is {(wanted or 1) - left} too many."
        )
    return wanted or min(_NEW_TOKENS, left or _NEW_TOKENS)


def _close(outputs: Iterator[Output]) -> None:
    close = getattr(outputs, "close", None)
    if close is not None:
        close()


def read_prompt_embeddings(path: Path, *, width: int | None, most: int | None) -> npt.NDArray[np.float32]:
    """Return the embeddings, (tokens, width), of an .npy file or of a .safetensors file with one tensor of any name.

    Raises `InvalidInput` for a wrong dtype, rank or width, for no tokens or more than `most`, and for numbers that are
    not finite; `MediaUnreadable` like `open_tensors`. None = no restriction.
    """
    file = open_tensors(path)
    if len(file.layouts) != 1:
        raise InvalidInput(f"The file has {len(file.layouts)} tensors; it must have one, the prompt's embeddings.")
    [(name, (dtype, shape))] = file.layouts.items()
    if dtype not in _DTYPES or len(shape) != 2 or shape[1] != (width or shape[1]):
        expected = f"{', '.join(_DTYPES)} (tokens, {width or 'hidden size'})"
        raise InvalidInput(f"The network takes embeddings as {expected}, not {described((dtype, shape))}.")
    if not 0 < shape[0] <= (most or shape[0]):
        bound = "at least one" if most is None else f"1 to {most}"
        raise InvalidInput(f"The network takes the embeddings of {bound} tokens, not of {shape[0]}.")
    embeddings = file.load()[name].astype(np.float32, copy=False)
    refuse_nan("prompt_embeds", embeddings)
    return embeddings


def embedding_width(config: Mapping[str, Any]) -> int | None:
    """Return the length of a token's vector from a `config.json`, or None."""
    text = config.get("text_config") or config
    return next((text[name] for name in _WIDTHS if isinstance(text.get(name), int)), None)
