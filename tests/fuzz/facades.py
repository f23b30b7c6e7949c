"""OpenAI's and vLLM's routes as OpenAPI: `docs/openapi.json` leaves them to the makers of their interfaces.

Routes, parameters and bodies are the API's own; what is said here is what answers look like.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from docs.generator.facades import facade_routes
from penstock.api.access import scope_of
from penstock.api.body import json_body
from penstock.api.facades.openai.audio import AudioRequest
from penstock.api.facades.openai.batches import CreateBatch
from penstock.api.facades.openai.images import ImagesRequest
from penstock.api.facades.openai.requests import ChatRequest, CompletionRequest, EmbeddingRequest
from penstock.api.facades.openai.responses import ResponseRequest
from penstock.api.facades.pooling.forms import PoolingRequest
from penstock.api.facades.pooling.scoring import ClassifyRequest, RerankRequest, ScoreRequest
from penstock.api.facades.runpod.routes import RunRequest

_V1 = "/openai/v1"
_RUNPOD = "/runpod/v2/{endpoint}"
BODIES: Mapping[str, type[BaseModel]] = {
    "/pooling": PoolingRequest,
    "/classify": ClassifyRequest,
    **dict.fromkeys(("/score", "/v1/score"), ScoreRequest),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), RerankRequest),
    f"{_V1}/chat/completions": ChatRequest,
    f"{_V1}/completions": CompletionRequest,
    f"{_V1}/responses": ResponseRequest,
    f"{_V1}/embeddings": EmbeddingRequest,
    f"{_V1}/images/generations": ImagesRequest,
    f"{_V1}/batches": CreateBatch,
    f"{_RUNPOD}/run": RunRequest,
    f"{_RUNPOD}/runsync": RunRequest,
}
_AUDIO = AudioRequest.model_json_schema()["properties"]
FORMS: Mapping[str, Mapping[str, Any]] = {
    f"{_V1}/audio/transcriptions": _AUDIO,
    f"{_V1}/audio/translations": _AUDIO,
    f"{_V1}/files": {"purpose": {"const": "batch"}},
}
#: Values that fit the existing models and media, by the route: no schema describes them.
FITTING: Mapping[str, Mapping[str, Any]] = {
    "/pooling": {
        "model": {"const": "mapper"},
        "data": {
            "type": "object",
            "properties": {"data": {"const": "http://files.test:80/a.tif"}, "data_format": {"const": "url"}},
            "required": ["data", "data_format"],
        },
    },
    **{route: {"model": {"const": "embedder"}} for route in ("/score", "/v1/score")},
    **{route: {"model": {"const": "embedder"}} for route in ("/rerank", "/v1/rerank", "/v2/rerank")},
    f"{_V1}/chat/completions": {"model": {"const": "writer"}},
    f"{_V1}/completions": {"model": {"const": "writer"}},
    f"{_V1}/responses": {"model": {"const": "writer"}},
    f"{_V1}/embeddings": {"model": {"const": "embedder"}},
    f"{_V1}/images/generations": {"model": {"const": "painter"}},
    f"{_V1}/audio/transcriptions": {"model": {"const": "listener"}, "language": {"enum": ["en", "de"]}},
    f"{_V1}/audio/translations": {"model": {"const": "listener"}, "language": {"enum": ["en", "de"]}},
    f"{_RUNPOD}/run": {"webhook": {"type": "null"}},
    f"{_RUNPOD}/runsync": {"webhook": {"type": "null"}},
    f"{_V1}/batches": {"endpoint": {"const": "/v1/embeddings"}, "completion_window": {"const": "24h"}},
}
_ANY: Mapping[str, Any] = {"application/json": {}}
#: Routes that answer with other things than JSON.
_ANSWERS: Mapping[str, Mapping[str, Any]] = {
    f"{_V1}/chat/completions": {**_ANY, "text/event-stream": {}},
    f"{_V1}/completions": {**_ANY, "text/event-stream": {}},
    f"{_V1}/responses": {**_ANY, "text/event-stream": {}},
    f"{_V1}/audio/transcriptions": {**_ANY, "text/plain": {}},
    f"{_V1}/audio/translations": {**_ANY, "text/plain": {}},
    f"{_V1}/files/{{file_id}}/content": {"application/jsonl": {}},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
            },
            "additionalProperties": {"type": ["string", "integer"]},
        }
    },
}
#: An error of RunPod's interface.
_TEXT_ERROR = {
    "type": "object",
    "required": ["error", "code", "status"],
    "properties": {
        "error": {"type": "string", "minLength": 1},
        "code": {"type": "string"},
        "status": {"type": "integer"},
    },
}
_PATIENCE = {"Retry-After": {"required": True, "schema": {"type": "integer"}}}
#: 504: a job that is not over in time.
_REFUSALS = (400, 401, 403, 404, 405, 408, 409, 410, 413, 415, 422, 504)


def document(known: Mapping[str, str]) -> dict[str, Any]:
    """Return the description of the facades' routes, for a service that asks for keys and has what is `known`."""
    routes = [copy.copy(route) for route in facade_routes()]
    for route in routes:
        route.include_in_schema = True
    made = get_openapi(title="Facades", version="1", routes=routes)
    for path, operations in made["paths"].items():
        for verb, operation in operations.items():
            _describe(path, verb, operation, known)
    made.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return made


def _describe(path: str, verb: str, operation: dict[str, Any], known: Mapping[str, str]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in known:
            parameter["schema"] = {"enum": [known[parameter["name"]], "none"]}
    if verb == "post" and (path in BODIES or path in FORMS):
        operation["requestBody"] = _body(path, known)
    operation["responses"] = _responses(path)
    assert scope_of(verb.upper(), path) is not None
    operation["security"] = [{"key": []}]


def _body(path: str, known: Mapping[str, str]) -> dict[str, Any]:
    if path in BODIES:
        body: dict[str, Any] = json_body(BODIES[path])["requestBody"]
        properties = body["content"]["application/json"]["schema"]["properties"]
    else:
        properties = {**FORMS[path], "file": {"type": "string", "format": "binary"}}
        required = ["file", *(name for name in ("model", "purpose") if name in properties)]
        schema = {"type": "object", "properties": properties, "required": required}
        body = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    properties |= FITTING.get(path, {})
    if "input_file_id" in properties:
        properties["input_file_id"] = {"const": known["file_id"]}
    return body


def _responses(path: str) -> dict[str, Any]:
    error = _TEXT_ERROR if path.startswith("/runpod") else _ERROR
    refusal = {"description": "Refused", "content": {"application/json": {"schema": error}}}
    answers = {"200": {"description": "Done", "content": dict(_ANSWERS.get(path, _ANY))}}
    if path == "/pooling":
        answers["202"] = {"description": "Not over", "content": dict(_ANY)}
    told = {str(status): {**refusal, "headers": _PATIENCE} for status in (429, 503)}
    return {**answers, **{str(status): refusal for status in _REFUSALS}, **told}
