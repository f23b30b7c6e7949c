"""OpenAI's transcriptions and translations: a form with an audio file in, the text in the requested format out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import ConfigDict, Field
from starlette.datastructures import FormData, UploadFile

from penstock.api.facades.calls import Call, CurrentCall, store_file
from penstock.api.facades.capabilities import Capability
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.openai.requests import Body, ModelName, invalid
from penstock.api.forms import FRAME_BYTES, read_form
from penstock.errors import InvalidRequest, Issue
from penstock.json_body import fingerprint, validated
from penstock.requests import JobRequest

Task = Literal["transcribe", "translate"]
_GRANULARITIES = "timestamp_granularities[]"

router = APIRouter(prefix="/openai/v1/audio", tags=["facades"], include_in_schema=False)


class AudioRequest(Body):
    """The form fields of `POST /v1/audio/transcriptions` and `/translations`, without the file."""

    model_config = ConfigDict(frozen=True, strict=False)

    model: ModelName
    language: str | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    timestamp_granularities: tuple[Literal["segment", "word"], ...] = Field(("segment",), alias=_GRANULARITIES)

    @property
    def words(self) -> bool:
        """True where word timestamps are requested."""
        return "word" in self.timestamp_granularities


@router.post("/transcriptions")
async def create_transcription(call: CurrentCall) -> Response:
    """Transcribe an audio file."""
    return await _answer(call, "transcribe")


@router.post("/translations")
async def create_translation(call: CurrentCall) -> Response:
    """Translate an audio file into English text."""
    return await _answer(call, "translate")


def read_audio(form: FormData, task: Task) -> AudioRequest:
    """Return a form's request; raise `InvalidRequest`, also for unsupported fields that would change the result."""
    single = AudioRequest.model_fields.keys() - {"timestamp_granularities"}
    fields: dict[str, Any] = {name: form.get(name) for name in single if form.get(name) not in (None, "")}
    if task == "translate":
        fields.pop("language", None)
    if form.get("prompt"):
        raise invalid("prompt", "is not supported by the models of this service; leave it out")
    if str(form.get("stream", "false")).lower() not in ("", "false", "0"):
        raise invalid("stream", "is not supported here; use POST /v1/jobs and read its events, which stream the text")
    if granularities := form.getlist(_GRANULARITIES):
        fields[_GRANULARITIES] = tuple(granularities)
    wanted = validated(AudioRequest, fields)
    if wanted.words and wanted.response_format != "verbose_json":
        raise invalid("timestamp_granularities", "with 'word' needs the response_format 'verbose_json'")
    return wanted


def audio_answer(result: JobResult, wanted: AudioRequest, task: Task) -> Response:
    """Return a finished job in the requested format. Segment fields that no model provides are omitted."""
    segments = result.data.get("segments") or []
    match wanted.response_format:
        case "text":
            return PlainTextResponse(result.text + "\n")
        case "srt" | "vtt":
            from penstock.processors.speech import subtitles  # here, because the API loads no processor at its start

            write = subtitles.srt if wanted.response_format == "srt" else subtitles.vtt
            return PlainTextResponse(write(segments))
    seconds = float(result.data.get("duration") or 0)
    answer: dict[str, Any] = {"text": result.text, "usage": {"type": "duration", "seconds": math.ceil(seconds)}}
    if wanted.response_format == "verbose_json":
        details: Mapping[str, Any] = {"task": task, "language": result.data.get("language"), "duration": seconds}
        answer = {**details, **answer}
        if "segment" in wanted.timestamp_granularities:
            answer["segments"] = segments
        if wanted.words:
            found = result.data.get("words") or []
            answer["words"] = [{"word": one["text"], "start": one["start"], "end": one["end"]} for one in found]
    return JSONResponse(answer)


async def _answer(call: Call, task: Task) -> Response:
    limit_bytes = call.api.settings.upload_limit_bytes(call.tenant)
    async with read_form(call.request, limit_bytes=limit_bytes + FRAME_BYTES, settings=call.api.settings) as form:
        wanted, file = read_audio(form, task), form.get("file")
        if not isinstance(file, UploadFile):
            raise InvalidRequest(errors=[Issue("/file", "is required, as a file")])
        entry = await call.model(wanted.model, Capability.TRANSCRIPTION)
        stored = await store_file(call, file, "recording")
    given = {
        "language": wanted.language,
        "temperature": wanted.temperature,
        "task": task,
        "timestamps": "word" if wanted.words else None,
    }
    value = {name: each for name, each in given.items() if each is not None}
    body = {**value, "model": wanted.model, "sha256": stored.digest}
    identity = fingerprint({"path": call.request.url.path, "body": body})
    job = await call.submit(identity, JobRequest(model=entry.name, input={"audio": stored.reference, **value}))
    answer = audio_answer(JobResult.of(await call.wait_for_result(job)), wanted, task)
    answer.headers["x-request-id"] = job.key.id
    return answer
