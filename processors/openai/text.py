"""Chats and completions of a server that speaks OpenAI's protocol. The answer's text is streamed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import MediaTooLarge
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.io_signature import IOSignature
from penstock.processors.limits import check_items
from penstock.processors.openai.body import Medium, chat_body, check_media, parameters, part_of
from penstock.processors.openai.image_embeddings import ImageEmbeddings
from penstock.processors.openai.kinds import kinds_of
from penstock.processors.openai.options import EngineOptions, options_of
from penstock.processors.openai.request import ChatRequest, CompletionRequest, Sampling, request_for, taking
from penstock.processors.outputs import OUTPUTS

#: A prompt: the route below the server's address, the body, the media's places in it, and their bytes `medium_0`, ...
ROUTE_NAME, BODY_NAME, MEDIA_NAME, MEDIUM_NAME = "route", "body", "media", "medium_{}"
#: The parameter of a body that names a LoRA adapter. The protocol has the model's name in its place.
ADAPTER_NAME = "adapter"
#: An output: the text of the first answer so far, and in the final output the whole answer of the server.
TEXT_NAME, ANSWER_NAME = "text", "answer"
ASKED = IOSignature(
    prompt={ROUTE_NAME: "text", BODY_NAME: "object", MEDIA_NAME: "list"},
    optional={MEDIUM_NAME.format("*"): "uint8 (bytes)"},
    output={ANSWER_NAME: "object"},
)
#: Bytes of all media of a request, at most: they are in memory until the server has answered.
MAX_MEDIA_BYTES = 64 * 2**20
#: The formats that OpenAI's protocol names. vLLM refuses others in some messages, and goes by the file's bytes anyway.
_NAMED = ("wav", "mp3")
#: Samples a second that are made of a recording. They are counted and dropped.
_RATE_HZ = 16_000


class OpenAIChat:
    """The processor of chats: `POST /chat/completions`."""

    request: type[ChatRequest] = ChatRequest
    outputs = (OUTPUTS.spec("text", "the answer's text, which is streamed as events while it is made"),)
    io_signatures = (ASKED,)

    def __init__(self, model: Model) -> None:
        options = options_of(model)
        self._model, self._most = model, options.media
        self._is_in_worker = isinstance(options, EngineOptions)
        self._embeddings = ImageEmbeddings.of(model, options)
        kinds = kinds_of(model, options)
        self.request = request_for(taking(kinds, embeddings=self._embeddings is not None), options)

    def pre_process(self, request: ChatRequest, media: Media) -> Prepared[None]:
        """Return one prompt with the media's bytes."""
        body, files = chat_body(request, media.path)
        check_items(len(files), self._model.limits, "/input", "media")
        check_media(files, self._most)
        if self._is_in_worker:
            check_recordings(body, files, self._model.limits)
        if self._embeddings is not None:
            files = self._embeddings.inserted(body, files)
        return _prepared("chat/completions", body, request, files)

    def post_process(self, outputs: Iterator[Output], context: None, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return the first answer's text; as data `{"finish_reason", "usage"}`, and `choices` where they hold more."""
        return answered(outputs, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a short question."""
        return Dummy({"prompt": "Hello", "max_tokens": 1})


class OpenAICompletion:
    """The processor of completions: `POST /completions`."""

    request: type[CompletionRequest] = CompletionRequest
    outputs = OpenAIChat.outputs
    io_signatures = (ASKED,)

    def __init__(self, model: Model) -> None:
        self.request = request_for(CompletionRequest, options_of(model))

    def pre_process(self, request: CompletionRequest, media: Media) -> Prepared[None]:  # noqa: ARG002
        """Return one prompt."""
        return _prepared("completions", parameters(request), request, ())

    def post_process(self, outputs: Iterator[Output], context: None, sink: ArtifactSink) -> Result:  # noqa: ARG002
        """Return the first answer's text; as data `{"finish_reason", "usage"}`, and `choices` where they hold more."""
        return answered(outputs, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:  # noqa: ARG002
        """Return a short text."""
        return Dummy({"prompt": "Hello", "max_tokens": 1})


def check_recordings(body: Mapping[str, Any], media: Sequence[Medium], limits: Limits) -> None:
    """Decode the recordings of a chat before vLLM's server gets them, and name their formats as vLLM takes them.

    A recording that crashes its decoder ends the process of its job, and not the server with the requests of all jobs.
    vLLM also answers 500 to many damaged recordings.
    Raises `MediaTooLarge` for more than `limits.max_seconds`, and `MediaUnreadable` for a file that cannot be decoded.
    """
    for medium in media:
        if medium.at[-2] != "input_audio":
            continue
        from penstock.processors.speech.recording import read_audio  # with PyAV, which models without audio do not need

        for _ in read_audio(medium.path, limits, _RATE_HZ):
            pass
        part = part_of(body, medium)
        part["format"] = part["format"] if part["format"] in _NAMED else _NAMED[0]


def answered(outputs: Iterator[Output], sink: ArtifactSink) -> Result:
    """Stream the text to the sink and return the result.

    A request that failed half way is sent again, and may produce a different text. Streamed text cannot be withdrawn,
    so a different text is in the result only.
    """
    said, answer = "", dict[str, Any]()
    for output in outputs:
        text = str(output.data[TEXT_NAME])
        if text.startswith(said) and text != said:
            sink.say(text[len(said) :])
            said = text
        if not output.partial:
            answer = dict(output.data[ANSWER_NAME])
    choices: Sequence[Mapping[str, Any]] = answer.get("choices") or ()
    reason = choices[0].get("finish_reason") if choices else None
    data: dict[str, Any] = {"finish_reason": reason or "stop", "usage": answer.get("usage") or {}}
    if len(choices) > 1 or any(map(_holds_more, choices)):
        data["choices"] = list(choices)
    return Result(text=text_of(choices), data=data)


def text_of(choices: Sequence[Mapping[str, Any]]) -> str:
    """Return the first answer's text."""
    first = choices[0] if choices else {}
    message = first.get("message")
    found = message.get("content") if isinstance(message, Mapping) else first.get("text")
    return found if isinstance(found, str) else ""


def _holds_more(choice: Mapping[str, Any]) -> bool:
    """Return True for an answer with log probabilities, tool calls or other fields beside its text."""
    message = choice.get("message") or {}
    return bool(choice.get("logprobs")) or any(message.get(name) for name in message if name not in ("role", "content"))


def _prepared(route: str, body: Mapping[str, Any], request: Sampling, files: Sequence[Medium]) -> Prepared[None]:
    total = sum(medium.size_bytes for medium in files)
    if total > MAX_MEDIA_BYTES:
        raise MediaTooLarge(f"the media of a request may have {MAX_MEDIA_BYTES} bytes together; these have {total}")
    arrays = {MEDIUM_NAME.format(at): medium.bytes() for at, medium in enumerate(files)}
    places = [[list(medium.at), medium.before] for medium in files]
    cost = request.n or 1
    prompt = Prompt({ROUTE_NAME: route, BODY_NAME: body, MEDIA_NAME: places, **arrays}, cost)
    return Prepared(iter([prompt]), 1, cost, None, repeatable=request.repeatable)
