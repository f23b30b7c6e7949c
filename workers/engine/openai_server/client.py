"""Requests to a server that speaks OpenAI's protocol: streamed, bounded, and tried again after failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import structlog

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.processors.base import Output
from penstock.processors.openai.options import ServerOptions
from penstock.processors.openai.text import ANSWER_NAME, TEXT_NAME
from penstock.workers.engine.openai_server.answers import Answer, Malformed, parsed
from penstock.workers.engine.openai_server.failures import Busy, Failed, Tries, refusal, told, words_of
from penstock.workers.engine.remote_requests import Tell

#: Bytes that a server may send for one request.
MAX_BYTES = 64 * 2**20
#: Bytes of an answer as JSON, at most: more does not fit into a message to the IO process.
MAX_ANSWER_BYTES = 12 * 2**20
#: Bytes of an error that are read.
MAX_ERROR_BYTES = 64 * 1024
#: Seconds in which a server must list its models, and bytes of the list that are read.
LIST_S, MAX_LIST_BYTES = 5.0, 2**20
_HIDDEN = "[key]"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Server:
    """A server's address, with the key that it asks for."""

    url: str
    options: ServerOptions
    key: str | None = field(repr=False)
    #: Socket of the file system on which it listens instead of a host and port.
    socket: str | None = None
    #: Its name in errors; default: by its address.
    called: str = ""

    @property
    def name(self) -> str:
        """The server's name in errors."""
        return self.called or f"the server at {self.url}"

    @asynccontextmanager
    async def connected(self, *, keeps: bool = True) -> AsyncIterator[httpx2.AsyncClient]:
        """Yield a client of the server; one that does not keep connections makes one for each request."""
        options = self.options
        timeout = httpx2.Timeout(options.timeout_s, connect=options.connect_timeout_s, pool=None)
        kept = options.concurrency if keeps else 0
        limits = httpx2.Limits(max_connections=options.concurrency, max_keepalive_connections=kept)
        # Given a transport, the client ignores limits of its own.
        transport = httpx2.AsyncHTTPTransport(uds=self.socket, limits=limits, trust_env=False)
        async with httpx2.AsyncClient(timeout=timeout, transport=transport, **self._common()) as client:
            yield client

    def models(self) -> list[str] | None:
        """Return the names of the server's models, None if it does not list them; raise `ModelUnavailable`."""
        try:
            answer, body = asyncio.run(self._listed())
        except (httpx2.HTTPError, TimeoutError) as error:
            raise ModelUnavailable(f"{self.name} does not answer ({_name(error)})") from error
        if answer.status_code in (401, 403) or answer.is_redirect:
            raise ModelUnavailable(str(self._refusal(answer.status_code, answer.headers, body)))
        if answer.is_server_error:
            raise ModelUnavailable(f"{self.name} answers {answer.status_code}")
        try:
            return [str(model["id"]) for model in json.loads(body)["data"]]
        except (ValueError, LookupError, TypeError, RecursionError):
            return None

    async def _listed(self) -> tuple[httpx2.Response, bytes]:
        """Ask for the models; a server that sends a byte now and then has no more time than others."""
        async with (
            asyncio.timeout(LIST_S),
            httpx2.AsyncClient(timeout=LIST_S, **self._common()) as client,
            client.stream("GET", f"{self.url}/models") as answer,
        ):
            return answer, await _read(answer, MAX_LIST_BYTES, cut=True)

    async def ask(self, client: httpx2.AsyncClient, asked: ServerRequest, tell: Tell) -> Output:
        """Return a request's answer, telling its text while it comes.

        Raises `InvalidInput` with the server's words, `ModelUnavailable`, or `ModelServerFailed` after the last try.
        """
        tries = Tries(self.options.retries)
        while True:
            try:
                with self._translated():
                    return await self._once(client, asked, tell)
            except Busy as busy:
                tries, pause_s = tries.waited(), busy.after_s
                log.info("server.busy", server=self.url, after_s=pause_s, reason=str(busy))
            except Failed as failure:
                tries, pause_s = tries.failed(failure), 0.0
                log.warning("server.failed", server=self.url, tries=tries.failures, reason=str(failure))
            await asyncio.sleep(max(pause_s, tries.pause_s))

    async def _once(self, client: httpx2.AsyncClient, asked: ServerRequest, tell: Tell) -> Output:
        headers = {"content-type": "application/json", "accept": "text/event-stream, application/json"}
        async with client.stream("POST", f"{self.url}/{asked.route}", content=asked.body, headers=headers) as response:
            if response.status_code != httpx2.codes.OK:
                words = await _read(response, MAX_ERROR_BYTES, cut=True)
                raise self._refusal(response.status_code, response.headers, words)
            if response.headers.get("content-encoding", "identity") != "identity":
                raise Malformed("the answer is compressed, although that was not asked for")
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                return await self._streamed(response, tell)
            answer = parsed((await _read(response, MAX_BYTES)).decode("utf-8", "replace"))
            self._require_answer(answer)
            return _output(answer)

    async def _streamed(self, response: httpx2.Response, tell: Tell) -> Output:
        answer = Answer()
        response.stream = _Bounded(response.stream)
        response.encoding = "utf-8"  # the form has no other, and a charset names any codec of Python
        async for event in httpx2.EventSource(response, max_event_size=None):  # `_Bounded` bounds the stream
            if event.data == "[DONE]":
                return _output(answer.whole())
            if not event.data:
                continue
            chunk = parsed(event.data)
            self._require_answer(chunk)
            before = answer.text
            answer.add(chunk)
            if (text := answer.text) != before:
                tell(Output({TEXT_NAME: text}, partial=True))
        if not answer.complete:
            raise Failed(f"{self.name} ended the stream before its end")
        return _output(answer.whole())

    def _require_answer(self, said: Any) -> None:
        """Raise the error that a server tells in place of an answer."""
        if isinstance(said, dict) and isinstance(said.get("error"), dict):
            raise told({**said["error"], "message": words_of(said, self._hidden)}, server=self.name)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate the errors of the library and of malformed answers to failures."""
        try:
            yield
        except httpx2.ReadTimeout as error:
            reason = f"{self.name} sent nothing for {self.options.timeout_s:g} s"
            raise Failed(reason) from error
        except (httpx2.HTTPError, Malformed) as error:
            words = str(error) if isinstance(error, Malformed) else _name(error)
            verb = "does not answer" if isinstance(error, httpx2.ConnectError) else "failed"
            raise Failed(f"{self.name} {verb} ({words})") from error

    def _refusal(self, status: int, headers: httpx2.Headers, body: bytes) -> Exception:
        text = body.decode("utf-8", "replace")
        try:
            words = words_of(json.loads(text), self._hidden)
        except (ValueError, RecursionError):
            words = words_of(text, self._hidden)
        return refusal(status, headers, words, server=self.name)

    def _hidden(self, words: str) -> str:
        """Return words without the key, which a server may repeat."""
        return words.replace(self.key, _HIDDEN) if self.key else words

    def _common(self) -> dict[str, Any]:
        headers = {"accept-encoding": "identity", "user-agent": "penstock"}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        return {"headers": headers, "follow_redirects": False, "trust_env": False}


@dataclass(frozen=True, slots=True)
class ServerRequest:
    """A request: its route below the server's address, and its body."""

    route: str
    body: bytes


class _Bounded(httpx2.AsyncByteStream):
    """A response's stream that ends with an error after `MAX_BYTES`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes."""
        count = 0
        async for part in self._stream:
            count += len(part)
            if count > MAX_BYTES:
                raise _too_large(MAX_BYTES)
            yield part

    async def aclose(self) -> None:
        """Close the response's stream."""
        await self._stream.aclose()


async def _read(response: httpx2.Response, limit_bytes: int, *, cut: bool = False) -> bytes:
    """Return a body of at most so many bytes; raise `InvalidInput` for a longer one unless it is to be `cut`."""
    data = b""
    async for part in response.aiter_raw():
        data += part
        if len(data) > limit_bytes:
            if cut:
                return data[:limit_bytes]
            raise _too_large(limit_bytes)
    return data


def _output(answer: Any) -> Output:
    if not isinstance(answer, dict):
        raise Malformed("the answer is no object")
    if len(json.dumps(answer)) > MAX_ANSWER_BYTES:
        raise _too_large(MAX_ANSWER_BYTES)
    choices = answer.get("choices")
    if choices is not None and not (isinstance(choices, list) and all(isinstance(one, dict) for one in choices)):
        raise Malformed("`choices` is no list of objects")
    if not choices and "data" not in answer:  # embeddings are data
        raise Malformed("the answer has no choices")
    if not all(isinstance(choice.get("message", {}), dict) for choice in choices or ()):
        raise Malformed("a `message` is no object")
    if not isinstance(answer.get("usage") or {}, dict):
        raise Malformed("the `usage` is no object")
    whole = Answer(choices={0: choices[0]} if choices else {})
    return Output({TEXT_NAME: whole.text, ANSWER_NAME: answer})


def _too_large(limit_bytes: int) -> InvalidInput:
    return InvalidInput(
        f"the server's answer exceeds {limit_bytes:,} bytes: ask for fewer tokens, answers or log probabilities"
    )


def _name(error: Exception) -> str:
    """Return the name of a library's error, and its words where they help."""
    words = str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
