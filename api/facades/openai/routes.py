"""OpenAI's interface under `/openai/v1`: models, chats, responses, completions and embeddings.

The client's base URL is `http://HOST/openai/v1`. Every call is a job, like those of `/v1/jobs`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from fastapi import APIRouter, Response

from penstock.api.facades.calls import Call, CurrentCall, json_answer
from penstock.api.facades.capabilities import Capability, capabilities_of
from penstock.api.facades.openai import answers, forwarded, requests, responses
from penstock.api.facades.openai.answers import Chunks, JobResult, Kind
from penstock.api.facades.openai.forwarded import Either, Models
from penstock.api.facades.openai.requests import Generation, Head
from penstock.api.facades.openai.stream import stream
from penstock.errors import UnknownModel
from penstock.jobs import Job, JobKey
from penstock.models import CatalogueEntry, find, no_model
from penstock.requests import JobRequest
from penstock.storage.journal import journal

GenerationT = TypeVar("GenerationT", bound=Generation)
#: Capabilities that OpenAI's interface uses.
_USED = frozenset(Capability) - {Capability.POOLING, Capability.SCORING, Capability.CLASSIFICATION}
_RESPONSES: Mapping[Kind, Callable[[JobResult], dict[str, Any]]] = MappingProxyType(
    {"chat.completion": answers.chat, "text_completion": answers.completion}
)

router = APIRouter(prefix="/openai/v1", tags=["facades"], include_in_schema=False)


@router.get("/models")
async def list_openai_models(call: CurrentCall) -> dict[str, Any]:
    """List the models that this interface can use."""
    served = await _models(call)
    return {"object": "list", "data": [answers.model_card(served[name]) for name in sorted(served)]}


@router.get("/models/{name:path}")
async def read_openai_model(name: str, call: CurrentCall) -> dict[str, Any]:
    """Return a model, by its name or an alias."""
    served = await _models(call)
    entry = find(served, name)
    if entry is None:
        raise UnknownModel(no_model([name], served))
    return answers.model_card(entry)


@router.post("/chat/completions")
async def create_chat_completion(call: CurrentCall) -> Response:
    """Create a chat completion."""
    return await _create(call, forwarded.read_either_chat, forwarded.chat, "chat.completion")


@router.post("/responses")
async def create_response(call: CurrentCall) -> Response:
    """Create a response; with `background`, return it before it has ended, and with `stream` its events."""
    body = await call.read(responses.read_response)
    chat = forwarded.read_either_chat(responses.chat_body(body.value))
    _, wanted = forwarded.chat(chat, await call.models(body.value.model), _seed())
    marked = wanted.model_copy(update={"metadata": {**wanted.metadata, **responses.MARK}})
    job = await call.submit(body.fingerprint, marked)
    if body.value.stream:
        return await stream(call, job, responses.ResponseEvents(job))
    return await _response(call, job if body.value.background else await call.wait_for_result(job))


@router.get("/responses/{response_id}")
async def read_response(response_id: str, call: CurrentCall) -> Response:
    """Return a response."""
    return await _response(call, await _response_job(response_id, call))


@router.post("/responses/{response_id}/cancel")
async def cancel_response(response_id: str, call: CurrentCall) -> Response:
    """Cancel a response."""
    key = (await _response_job(response_id, call)).key
    return await _response(call, await call.api.journal.run(journal.cancel(key)))


@router.post("/completions")
async def create_completion(call: CurrentCall) -> Response:
    """Create a text completion."""
    return await _create(call, forwarded.read_either_completion, forwarded.completion, "text_completion")


@router.post("/embeddings")
async def create_embeddings(call: CurrentCall) -> Response:
    """Create embeddings of texts, or of an image."""
    body = await call.read(requests.read_embedding)
    wanted = body.value
    entry = await call.model(wanted.model, Capability.EMBEDDING)
    requests.check_images(entry, wanted.messages or ())
    job = await call.submit(body.fingerprint, requests.embedding_job(entry, wanted))
    result = JobResult.of(await call.wait_for_result(job))
    content = answers.embeddings(
        result, encoding=wanted.encoding_format, dimensions=wanted.dimensions,
        truncated=wanted.truncate_prompt_tokens is not None,
    )  # fmt: skip
    return json_answer(job, content)


async def _models(call: Call) -> Mapping[str, CatalogueEntry]:
    catalogue = await call.api.models.read()
    return {
        name: entry for name, entry in catalogue.items() if entry.problem is None and capabilities_of(entry) & _USED
    }  # fmt: skip


async def _create(
    call: Call,
    read: Callable[[Any], Either[GenerationT]],
    job_of: Callable[[Either[GenerationT], Models, int], tuple[Head, JobRequest]],
    kind: Kind,
) -> Response:
    """Return the text of a model of this service, or of a model behind a server of this protocol; maybe as a stream."""
    body = await call.read(read)
    raw = body.value.raw
    models = await call.models(str(raw.get("model")) if isinstance(raw, dict) else "")
    wanted, job_request = job_of(body.value, models, _seed())
    job = await call.submit(body.fingerprint, job_request)
    if wanted.stream:
        return await stream(call, job, Chunks(kind, job, wanted.with_usage))
    return json_answer(job, _RESPONSES[kind](JobResult.of(await call.wait_for_result(job))))


async def _response(call: Call, job: Job) -> Response:
    return json_answer(job, responses.response(await call.api.whole(job)))


async def _response_job(response_id: str, call: Call) -> Job:
    """Return the job of a response of the tenant; raise `UnknownJob` for another job."""
    key = JobKey(call.tenant, responses.job_id_of(response_id))
    return responses.require_response(await call.api.journal.run(journal.read(key)))


def _seed() -> int:
    return secrets.randbelow(2**63)
