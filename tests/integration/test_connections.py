"""Connections of the API: the door in front of them, clients that leave, and ambiguous lengths."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pytest

from penstock.api.admission.concurrency import MAX_CONCURRENT
from penstock.api.admission.turnstile import Arrival, Turnstile
from penstock.api.connection import LONGEST_WAIT_S
from penstock.api.protocol import MAX_HELD_BYTES
from tests.integration.test_admission import JOB, crowd, key_of, services
from tests.support.api_server import Server, listening
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess

#: Status, headers and body of a response.
Answer: TypeAlias = tuple[int, dict[str, str], bytes]


class Wire:
    """A connection that writes bytes and reads responses."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def read(self) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the body of the next response."""
        async with asyncio.timeout(10):
            first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            return int(first.split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))


@asynccontextmanager
async def connected(service: Service) -> AsyncIterator[Wire]:
    async with listening(service) as server:
        wire = Wire(*await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port))
        try:
            yield wire
        finally:
            wire.writer.close()


def request(*lines: str, body: bytes | None = None, method: str = "POST", path: str = "/v1/jobs") -> bytes:
    data = json.dumps(JOB).encode() if body is None else body
    head = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *lines]
    return "\r\n".join([*head, f"Content-Length: {len(data)}", "", ""]).encode() + data


async def test_a_refused_connection_goes_on(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        async with crowd(service, "default"):
            for _ in range(2):
                wire.writer.write(request())
                status, headers, body = await wire.read()
                assert (status, headers["content-type"], headers["retry-after"]) == (
                    503, "application/problem+json", "1",
                )  # fmt: skip
                assert json.loads(body)["code"] == "overloaded"
            wire.writer.write(request(method="GET", body=b""))
            assert (await wire.read())[0] == 200
        wire.writer.write(request())
        assert (await wire.read())[0] == 202
        metrics = (await service.http.get("/metrics")).text
    assert 'penstock_http_requests_total{method="POST",route="/v1/jobs",status="503"} 2.0' in metrics


async def test_the_body_of_a_refused_request_is_discarded(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire, crowd(service, "default"):
        whole = request(body=b"POST /v1/jobs HTTP/1.1\r\n" + b"x" * 2 * MAX_HELD_BYTES)
        head, _, body = whole.partition(b"\r\n\r\n")
        wire.writer.write(head + b"\r\n\r\n")
        assert (await wire.read())[0] == 503  # before its body
        wire.writer.write(body + request(method="GET", body=b""))
        assert (await wire.read())[0] == 200


@pytest.mark.parametrize("line", ["Transfer-Encoding: chunked", "Connection: close", "Expect: 100-continue"])
async def test_the_library_reads_special_requests_while_others_are_refused(
    valkey: ValkeyProcess, tmp_path: Path, line: str
) -> None:
    chunked = b"2\r\n{}\r\n0\r\n\r\n" if line.startswith("Transfer") else b"{}"
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire, crowd(service, "default"):
        wire.writer.write(request(line, body=chunked))
        assert (await wire.read())[0] == 503


async def test_pipelined_requests_are_answered_in_their_order(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire, crowd(service, "default"):
        wire.writer.write(request() + request(method="GET", body=b"") + request())
        assert [(await wire.read())[0] for _ in range(3)] == [503, 200, 503]


async def test_the_door_knows_tenants_by_their_keys(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service, connected(service) as wire:
        keys = {tenant: f"Authorization: Bearer {key_of(service, tenant)}" for tenant in ("flood", "small")}
        async with crowd(service, "flood"):
            for _ in range(2):  # the first look-up of a key is the middleware's
                wire.writer.write(request(keys["flood"]))
                assert (await wire.read())[0] == 503
                wire.writer.write(request(keys["small"], body=b"not JSON"))
                assert (await wire.read())[0] == 400
            wire.writer.write(request(keys["small"][:-1] + "?"))
            assert (await wire.read())[0] == 401


async def test_a_burst_is_accepted_though_few_pass_at_once(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, listening(service) as server:
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)) for _ in range(40)]
        for wire in wires:
            wire.writer.write(request())
        assert {(await wire.read())[0] for wire in wires} == {202}
        for wire in wires:
            wire.writer.close()


class ShutTurnstile(Turnstile):
    """A turnstile that holds all submissions until somebody answers them."""

    def __init__(self) -> None:
        super().__init__(asyncio.get_running_loop().call_soon)
        self.held: list[Arrival] = []

    def admit(self, arrival: Arrival) -> None:
        """Hold a submission."""
        self.held.append(arrival)


@asynccontextmanager
async def held_at_the_door(server: Server, for_s: float) -> AsyncIterator[list[asyncio.Task[Answer]]]:
    """Hold submissions of both ways at the door, and answer them; give the tasks that read the responses."""
    ways = (request(), request(method="PUT", path=f"/v1/jobs/{uuid.uuid4()}"))
    server.door.turnstile = turnstile = ShutTurnstile()
    wires = [Wire(*await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)) for _ in ways]
    for wire, each in zip(wires, ways, strict=True):
        wire.writer.write(each)
    async with asyncio.timeout(60):
        while len(turnstile.held) < len(ways):
            await asyncio.sleep(0.01)
    await asyncio.sleep(for_s)  # what the clients wait for
    answers = [asyncio.create_task(wire.read()) for wire in wires]
    for arrival in turnstile.held:
        arrival.answer()
    yield answers
    await asyncio.gather(*answers)
    for wire in wires:
        wire.writer.close()


@pytest.mark.alone
@pytest.mark.breadth
async def test_the_time_at_the_door_counts_in_the_time_in_line(valkey: ValkeyProcess, tmp_path: Path) -> None:
    """Without it, a client waits at the door, and then in line for as long as one that has just come."""
    async with serving(valkey.url, tmp_path) as service, listening(service) as server, AsyncExitStack() as places:
        for _ in range(MAX_CONCURRENT):
            await places.enter_async_context(services(service).concurrency.acquire("other"))
        async with held_at_the_door(server, LONGEST_WAIT_S * 0.8) as answers:
            whole_line = asyncio.create_task(asyncio.sleep(LONGEST_WAIT_S))
            await asyncio.wait([asyncio.gather(*answers), whole_line], return_when=asyncio.FIRST_COMPLETED)
            assert not whole_line.done()
            whole_line.cancel()
            for answer in answers:
                assert is_overload(answer.result())


@pytest.mark.alone
@pytest.mark.breadth
async def test_a_submission_that_has_waited_at_the_door_for_too_long_is_refused_there(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(valkey.url, tmp_path) as service, listening(service) as server:
        async with held_at_the_door(server, LONGEST_WAIT_S) as answers:
            assert [is_overload(await answer) for answer in answers] == [True, True]
        assert (await service.http.get("/v1/jobs")).json()["jobs"] == []


def is_overload(answer: Answer) -> bool:
    status, headers, body = answer
    return (status, headers["retry-after"], json.loads(body)["code"]) == (503, "1", "overloaded")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/batches"])
async def test_a_client_that_leaves_amid_its_body_logs_nothing(
    valkey: ValkeyProcess,
    tmp_path: Path,
    path: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with serving(valkey.url, tmp_path) as service:
        capfd.readouterr()
        async with connected(service) as wire:
            wire.writer.write(request(path=path)[:-3])
            await wire.writer.drain()
            wire.writer.close()
            counted = f'penstock_http_requests_total{{method="POST",route="{path}",status="499"}} 1.0'
            async with asyncio.timeout(10):
                while counted not in (await service.http.get("/metrics")).text:
                    await asyncio.sleep(0.01)
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


async def test_a_request_with_two_lengths_ends_its_connection(valkey: ValkeyProcess, tmp_path: Path) -> None:
    body = json.dumps(JOB).encode()
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(request("Transfer-Encoding: chunked", body=chunked))
        status, headers, _ = await wire.read()
        assert (status, headers["connection"]) == (202, "close")
        assert await asyncio.wait_for(wire.reader.read(), 10) == b""


async def test_a_target_with_a_host_is_the_path(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        for target, expected in [("http://127.0.0.1/v1/jobs", 202), ("http://elsewhere.example/v1/jobs", 421)]:
            wire.writer.write(request(path=target))
            assert (await wire.read())[0] == expected  # the target's host counts, not the field's


@pytest.mark.parametrize("line", [b"\x16\x03\x01 TLS\r\n\r\n", b"GET /v1/jobs HTTP/1.1\r\nHost 127\r\n\r\n"])
async def test_a_request_that_cannot_be_read_gets_a_problem(line: bytes, valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(line)
        status, headers, body = await wire.read()
        assert (status, headers["content-type"], headers["connection"]) == (400, "application/problem+json", "close")
        assert json.loads(body)["code"] == "bad_request"


async def test_a_client_reads_a_refusal_before_it_has_sent_all(valkey: ValkeyProcess, tmp_path: Path) -> None:
    body = b"x" * 20_000_000
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(request("Connection: close", body=body))
        await wire.writer.drain()  # failed before: the connection was reset
        status, headers, _ = await wire.read()
        assert (status, headers["connection"]) == (413, "close")
        async with asyncio.timeout(10):
            assert await wire.reader.read() == b""
