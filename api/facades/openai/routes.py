"""OpenAI's interface below `/openai/v1`: models, chats, completions, embeddings, images. Batches and audio lie beside.

The client's base URL is `http://HOST/openai/v1`. Every call is a job, like those of `/v1/jobs`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from penstock.api.facades.abilities import Ability, abilities_of
from penstock.api.facades.calls import Call, TheCall
from penstock.api.facades.openai import answers, images, pictures, requests
from penstock.api.facades.openai.answers import Chunks, Kind, Result
from penstock.api.facades.openai.requests import Generation
from penstock.api.facades.openai.stream import stream
from penstock.errors import UnknownModel
from penstock.jobs import Job
from penstock.models import CatalogueEntry, find, known_names
from penstock.storage import catalogues

#: What OpenAI's interface can ask of a model.
_OURS = frozenset(Ability) - {Ability.POOLING}
_WHOLE: Mapping[Kind, Callable[[Result], dict[str, Any]]] = MappingProxyType(
    {"chat.completion": answers.chat, "text_completion": answers.completion}
)

router = APIRouter(prefix="/openai/v1", tags=["facades"], include_in_schema=False)


@router.get("/models")
async def list_openai_models(call: TheCall) -> dict[str, Any]:
    """List the models that this interface can ask for something."""
    served = await _models(call)
    return {"object": "list", "data": [answers.model_card(served[name]) for name in sorted(served)]}


@router.get("/models/{name:path}")
async def read_openai_model(name: str, call: TheCall) -> dict[str, Any]:
    """Return one of them, by its name or an alias."""
    served = await _models(call)
    entry = find(served, name)
    if entry is None:
        raise UnknownModel(f"there is no model {name!r}; known models: {known_names(served)}")
    return answers.model_card(entry)


@router.post("/chat/completions")
async def create_chat_completion(call: TheCall) -> Response:
    """Answer a conversation."""
    body = await call.body()
    wanted = requests.read_chat(body)
    entry = await call.model(wanted.model, Ability.CHAT)
    stored = await pictures.store(call, entry, wanted)
    asked = requests.chat_job(entry, wanted, seed=_seed(), stored=stored)
    return await _generated(call, wanted, await call.submit(body, asked), "chat.completion")


@router.post("/completions")
async def create_completion(call: TheCall) -> Response:
    """Continue a text."""
    body = await call.body()
    wanted = requests.read_completion(body)
    entry = await call.model(wanted.model, Ability.COMPLETION)
    asked = requests.completion_job(entry, wanted, seed=_seed())
    return await _generated(call, wanted, await call.submit(body, asked), "text_completion")


@router.post("/embeddings")
async def create_embeddings(call: TheCall) -> Response:
    """Embed texts."""
    body = await call.body()
    wanted = requests.read_embedding(body)
    entry = await call.model(wanted.model, Ability.EMBEDDING)
    job = await call.submit(body, requests.embedding_job(entry, wanted))
    result = Result.of(await call.succeeded(job))
    made = answers.embeddings(
        result, encoding=wanted.encoding_format, dimensions=wanted.dimensions,
        truncated=wanted.truncate_prompt_tokens is not None,
    )  # fmt: skip
    return _answer(job, made)


@router.post("/images/generations")
async def create_images(call: TheCall) -> Response:
    """Make images of what a text says."""
    body = await call.body()
    wanted = images.read_images(body)
    entry = await call.model(wanted.model, Ability.IMAGE)
    job = await call.submit(body, images.images_job(entry, wanted, seed=_seed()))
    return _answer(job, await images.images(call.api, await call.succeeded(job), wanted))


async def _models(call: Call) -> Mapping[str, CatalogueEntry]:
    catalogue = await call.api.jobs.run(catalogues.catalogue())
    return {
        name: entry for name, entry in catalogue.items() if entry.problem is None and abilities_of(entry) & _OURS
    }  # fmt: skip


async def _generated(call: Call, wanted: Generation, job: Job, kind: Kind) -> Response:
    """Answer with a job's text: while it is made, or whole."""
    if wanted.stream:
        return await stream(call, job, Chunks(kind, job, wanted.with_usage))
    return _answer(job, _WHOLE[kind](Result.of(await call.succeeded(job))))


def _answer(job: Job, content: Mapping[str, Any]) -> JSONResponse:
    return JSONResponse(content, headers={"x-request-id": job.key.id})


def _seed() -> int:
    return secrets.randbelow(2**63)
