"""A server that speaks OpenAI's protocol and says what it was told: also nothing, too much, or only the half."""

from __future__ import annotations

import json
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_UNIX
from types import TracebackType
from typing import Any, Self

#: Answers one request with a connection.
Behaviour = Callable[["Connection"], None]


class Gone(Exception):
    """The client has closed the connection."""


class Connection(BaseHTTPRequestHandler):
    """One request at the server."""

    protocol_version = "HTTP/1.1"
    server: _Listener
    body: dict[str, Any]
    #: True: it answers nothing more, as a connection that is being closed.
    is_over = False

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  (the base class's name)
        pass

    def do_GET(self) -> None:
        fake = self.server.fake
        if self.is_over:
            self.close_connection = True
            return
        if fake.key is not None and self.headers.get("authorization") != f"Bearer {fake.key}":
            self.answer(401, {"error": {"message": f"wrong key {self.headers.get('authorization')}"}})
            return
        if fake.drips:
            self._drip()
            return
        if fake.is_ill:
            self.answer(503, {"error": {"message": "ill"}})
            return
        self.answer(200, {"object": "list", "data": [{"id": name} for name in fake.models]})

    def _drip(self) -> None:
        """Send a byte now and then, until the client leaves."""
        self.begin()
        try:
            while True:
                self.raw(b" ")
                self.wait_s(0.2)
        except (Gone, BrokenPipeError, ConnectionResetError):
            self.server.fake.left.release()
            self.close_connection = True

    def do_POST(self) -> None:
        fake = self.server.fake
        self.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with fake.noted(self):
            try:
                fake.behaviour()(self)
            except (Gone, BrokenPipeError, ConnectionResetError):
                fake.left.release()
                self.close_connection = True

    def answer(self, status: int, body: Any, **headers: str) -> None:
        """Answer with JSON, or with bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def begin(self, charset: str = "utf-8") -> None:
        """Begin a stream of events."""
        self.send_response(200)
        self.send_header("content-type", f"text/event-stream; charset={charset}")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def send(self, data: Any) -> None:
        """Send an event: text as it is, other data as JSON."""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        self.raw(f"data: {text}\n\n".encode())

    def raw(self, data: bytes) -> None:
        """Send bytes in the stream."""
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def end(self) -> None:
        """End the stream as promised."""
        self.send("[DONE]")
        self.raw(b"")

    def cut(self) -> None:
        """Close the connection in the middle of the stream."""
        self.close_connection = True

    def wait(self, event: threading.Event) -> None:
        """Wait for an event; raise `Gone` if the client leaves before."""
        while not event.wait(0.01):
            if self.connection.fileno() < 0:
                raise Gone  # the server was stopped
            if select.select([self.connection], [], [], 0)[0]:
                raise Gone

    def wait_s(self, seconds: float) -> None:
        """Let time pass; raise `Gone` if the client leaves before."""
        if select.select([self.connection], [], [], seconds)[0]:
            raise Gone

    def chunk(self, index: int = 0, reason: str | None = None, **delta: Any) -> None:
        """Send a piece of a choice."""
        choice: dict[str, Any] = {"index": index, "finish_reason": reason}
        choice |= {"logprobs": delta.pop("logprobs")} if "logprobs" in delta else {}
        choice |= (
            {"text": delta.get("content", "")}
            if self.path.endswith("/completions") and "prompt" in self.body
            else {"delta": delta}
        )
        self.send({"id": "chatcmpl-1", "model": self.body["model"], "choices": [choice]})

    @property
    def asked(self) -> str:
        """The text of the prompt, or of the last message."""
        if "prompt" in self.body:
            return str(self.body["prompt"])
        content = self.body["messages"][-1]["content"]
        return content if isinstance(content, str) else " ".join(p["text"] for p in content if p["type"] == "text")


def echo(connection: Connection) -> None:
    """Repeat the prompt word by word, in upper case for each further choice, when the gate is open."""
    fake, body = connection.server.fake, connection.body
    if connection.path.endswith("/embeddings"):
        rows = [{"index": at, "embedding": [float(len(text)), 1.5]} for at, text in enumerate(body["input"])]
        connection.answer(200, {"data": rows[::-1], "usage": {"prompt_tokens": len(rows)}})
        return
    words = connection.asked.split(" ")
    connection.begin()
    for index in range(body.get("n", 1)):
        for at, word in enumerate(words):
            piece = (" " if at else "") + (word.upper() if index else word)
            more = {"logprobs": {"content": [{"token": piece, "logprob": -0.5}]}} if body.get("logprobs") else {}
            connection.chunk(index, content=piece, **more)
            if at == 0:
                connection.wait(fake.gate)
        connection.chunk(index, reason="stop")
    usage = {"prompt_tokens": len(words), "completion_tokens": len(words), "total_tokens": 2 * len(words)}
    connection.send({"choices": [], "usage": usage})
    connection.end()


def call_tool(connection: Connection) -> None:
    """Ask for a call of the first tool, in two pieces."""
    name = connection.body["tools"][0]["function"]["name"]
    connection.begin()
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": '{"a"'}}
    connection.chunk(tool_calls=[first])
    connection.chunk(tool_calls=[{"index": 0, "function": {"arguments": ": 1}"}}])
    connection.chunk(reason="tool_calls")
    connection.send({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}})
    connection.end()


def status(code: int, words: str = "no", **headers: str) -> Behaviour:
    """Return an answer with a status."""
    return lambda connection: connection.answer(code, {"error": {"message": words, "code": code}}, **headers)


def cut(connection: Connection) -> None:
    """Send a word and close the connection."""
    connection.begin()
    connection.chunk(content=connection.asked.split(" ")[0])
    connection.cut()


def quiet_end(connection: Connection) -> None:
    """Send a word and end the stream as if that were all, without a reason."""
    connection.begin()
    connection.chunk(content="half")
    connection.raw(b"")


def stall(connection: Connection) -> None:
    """Send a word and then nothing, until the client leaves."""
    connection.begin()
    connection.chunk(content=connection.asked.split(" ")[0])
    connection.wait(threading.Event())


def malformed(*events: str) -> Behaviour:
    """Return a stream of these events."""

    def behave(connection: Connection) -> None:
        connection.begin()
        for event in events:
            connection.send(event)
        connection.end()

    return behave


def whole(body: Any) -> Behaviour:
    """Return an answer without a stream."""
    return lambda connection: connection.answer(200, body)


def endless(connection: Connection) -> None:
    """Send one line without an end."""
    connection.begin()
    connection.raw(b"data: ")
    while True:
        connection.raw(b"x" * 2**20)


class FakeServer:
    """A server on a port of its own. Each request has the next planned behaviour, and `echo` after these."""

    def __init__(
        self,
        *plans: Behaviour,
        port: int = 0,
        models: tuple[str, ...] = ("tiny",),
        key: str | None = None,
        drips: bool = False,
        socket: Path | None = None,
    ) -> None:
        """With `drips`, the list of models never ends. With a socket of the file system there is no port."""
        self.models, self.key, self.drips = models, key, drips
        #: True: its health is bad.
        self.is_ill = False
        self.plans = deque(plans)
        #: Bodies and headers of all requests.
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        #: Requests at work now, and the most at a time.
        self.active, self.peak = 0, 0
        #: Closed: `echo` waits after its first word.
        self.gate = threading.Event()
        self.gate.set()
        #: Released for each client that left before the end of its answer.
        self.left = threading.Semaphore(0)
        self.changed = threading.Condition()
        self._listener = _Listener(("127.0.0.1", port), Connection) if socket is None else _AtPath(socket)
        self._listener.fake = self
        self.port = 0 if socket is not None else int(self._listener.server_address[1])
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self) -> str:
        """Return the address that a record names."""
        return f"http://127.0.0.1:{self.port}/v1"

    def behaviour(self) -> Behaviour:
        """Return the behaviour for the next request."""
        with self.changed:
            return self.plans.popleft() if self.plans else echo

    def wait_for_active(self, count: int, timeout_s: float = 60) -> None:
        """Wait until so many requests are at work."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.active == count, timeout_s), f"{self.active} are at work"

    @contextmanager
    def noted(self, connection: Connection) -> Iterator[None]:
        """Note a request while it is at work."""
        with self.changed:
            self.bodies.append(connection.body)
            self.headers.append(dict(connection.headers.items()))
            self.active += 1
            self.peak = max(self.peak, self.active)
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.active -= 1
                self.changed.notify_all()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, and close what is open."""
        self._listener.shutdown()
        self._listener.close_all()
        self._listener.server_close()
        self._thread.join(10)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 256
    fake: FakeServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._open: set[Any] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        for connection in list(self._open):
            super().shutdown_request(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class _AtPath(_Listener):
    address_family = AF_UNIX

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Connection)

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
