"""The runner `openai-server`: a server that runs already computes, such as vLLM, SGLang, llama.cpp, TGI or Ollama.

The server composes its batches itself. Penstock sends it at most `options.concurrency` requests at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.models import Model
from penstock.processors.base import Prompt
from penstock.processors.openai.body import filled
from penstock.processors.openai.options import ServerOptions
from penstock.processors.openai.text import ADAPTER_NAME, BODY_NAME, MEDIA_NAME, MEDIUM_NAME, ROUTE_NAME
from penstock.workers.engine.base import Runner, Step
from penstock.workers.engine.openai_server.client import Server, ServerRequest
from penstock.workers.engine.remote_requests import RemoteRequests, Request

#: Parameters that the runner sets, by route: texts are streamed.
_STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_SET: Mapping[str, Mapping[str, Any]] = {
    "chat/completions": _STREAMED,
    "completions": _STREAMED,
    "embeddings": {"encoding_format": "float"},
}


@dataclass(frozen=True, slots=True)
class ServerRunner:
    """A model at a server."""

    model: str
    max_batch: int
    requests: RemoteRequests[Any]
    adapters: Collection[str] = ()
    memory_bytes: int = 0

    @property
    def free(self) -> int:
        """The number of requests that may begin."""
        return self.requests.free

    def bucket(self, prompt: Prompt) -> Hashable:  # noqa: ARG002
        """Return one key for all prompts: each is a request of its own."""
        return "requests"

    def admit(self, prompt: Prompt) -> Request:
        """Return the prompt's request, with its media inserted."""
        route = prompt.data.get(ROUTE_NAME)
        if route not in _SET:
            raise ProcessorFailed(f"the runner takes requests to {', '.join(_SET)}")
        media = [
            (at, before, prompt.data[MEDIUM_NAME.format(number)].tobytes())
            for number, (at, before) in enumerate(prompt.data[MEDIA_NAME])
        ]
        body = dict(filled(deepcopy(dict(prompt.data[BODY_NAME])), media))
        model = self.model
        if body.get(ADAPTER_NAME) in self.adapters:
            model = body.pop(ADAPTER_NAME)
        whole = {**body, **_SET[str(route)], "model": model}
        return Request(ServerRequest(str(route), json.dumps(whole, separators=(",", ":")).encode()))

    def step(self, states: Sequence[Request]) -> Sequence[Step]:
        """Begin requests and return what has come of others, without waiting."""
        return self.requests.step(states)

    def awake(self, state: Request) -> bool:
        """Return True if the server has sent something that was not handed over."""
        return state.awake

    def drop(self, state: Request) -> None:
        """Close the request's stream at once."""
        self.requests.drop(state)

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a request awakes or ends."""
        self.requests.listen(wake)

    def close(self) -> None:
        """Close all connections."""
        self.requests.close()


def load_server(model: Model) -> Runner:
    """Return the runner of a server, which is asked with the first prompt; raise `ModelUnavailable`."""
    server = server_of(model)
    places = server.options.concurrency
    requests = RemoteRequests(server.connected, server.ask, places=places, name=f"server-{model.name}")
    return ServerRunner(str(server.options.model), places, requests, server.options.adapters)


def check_server(model: Model) -> None:
    """Ask the server if it has the model; raise `ModelUnavailable` with its words."""
    server = server_of(model)
    wanted, known = str(server.options.model), server.models()
    # Ollama lists `llama3:latest` and takes `llama3`.
    if known and not any(name in (wanted, f"{wanted}:latest") for name in known):
        raise ModelUnavailable(
            f"the server at {server.url} has no model {wanted!r} (`options.model`); it has: {', '.join(known[:20])}"
        )


def server_of(model: Model) -> Server:
    """Return the server of a record with its key from the environment; raise `ModelUnavailable`."""
    options = ServerOptions.of(model)
    try:
        parts = urlsplit(model.source)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or parts.username is not None or parts.query or parts.fragment:
        raise ModelUnavailable(
            f"the source of model {model.name!r} is not the address of a server, such as http://127.0.0.1:8000/v1, "
            "without a password or a query"
        )
    return Server(model.source.rstrip("/"), options, _key(model, options.api_key_variable))


def _key(model: Model, variable: str | None) -> str | None:
    """Return the key in an environment variable; raise `ModelUnavailable` without one that a header can have."""
    if variable is None:
        return None
    key, named = os.environ.get(variable, "").strip(), f"the environment variable {variable} (`api_key_variable`)"
    if not key:
        raise ModelUnavailable(f"model {model.name!r}: {named} is not set here")
    if not (key.isascii() and key.isprintable()):
        raise ModelUnavailable(f"model {model.name!r}: {named} has characters that no key has")
    return key
