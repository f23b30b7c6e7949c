"""Connections of the API: refusals before the body, clients that leave, and ambiguous lengths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.integration.test_admission import JOB, crowd, key_of
from tests.support.api_server import listening
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess


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
        whole = request(body=b"POST /v1/jobs HTTP/1.1\r\n" + b"x" * 131_072)
        head, _, body = whole.partition(b"\r\n\r\n")
        wire.writer.write(head + b"\r\n\r\n")
        assert (await wire.read())[0] == 503  # before its body
        wire.writer.write(body + request(method="GET", body=b""))
        assert (await wire.read())[0] == 200


@pytest.mark.parametrize("line", ["Transfer-Encoding: chunked", "Connection: close", "Expect: 100-continue"])
async def test_requests_of_special_forms_are_refused_too(valkey: ValkeyProcess, tmp_path: Path, line: str) -> None:
    chunked = b"2\r\n{}\r\n0\r\n\r\n" if line.startswith("Transfer") else b"{}"
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire, crowd(service, "default"):
        wire.writer.write(request(line, body=chunked))
        assert (await wire.read())[0] == 503


async def test_pipelined_requests_are_answered_in_their_order(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire, crowd(service, "default"):
        wire.writer.write(request() + request(method="GET", body=b"") + request())
        assert [(await wire.read())[0] for _ in range(3)] == [503, 200, 503]


async def test_requests_in_one_piece_are_answered_in_order(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(request())
        await asyncio.sleep(0)
        wire.writer.write(request("X: second", body=b"{}") + request(method="GET", body=b""))
        assert [(await wire.read())[0] for _ in range(3)] == [202, 422, 200]


async def test_admission_control_knows_tenants_by_their_keys(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service, connected(service) as wire:
        keys = {tenant: f"Authorization: Bearer {key_of(service, tenant)}" for tenant in ("flood", "small")}
        async with crowd(service, "flood"):
            for _ in range(2):  # the second time, the keys are cached
                wire.writer.write(request(keys["flood"]))
                assert (await wire.read())[0] == 503
                wire.writer.write(request(keys["small"], body=b"not JSON"))
                assert (await wire.read())[0] == 400
            wire.writer.write(request(keys["small"][:-1] + "?"))
            assert (await wire.read())[0] == 401


async def test_a_burst_is_accepted(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, listening(service) as server:
        wires = [Wire(*await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)) for _ in range(40)]
        for wire in wires:
            wire.writer.write(request())
        assert {(await wire.read())[0] for wire in wires} == {202}
        for wire in wires:
            wire.writer.close()


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
async def test_a_request_that_cannot_be_read_gets_400(line: bytes, valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(line)
        answer = await asyncio.wait_for(wire.reader.read(), 10)  # to the end of the connection
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("lengths", [("2", "3"), ("2", "2, 3"), ("-2",), ("+2",)])
async def test_several_or_wrong_lengths_are_refused(
    lengths: tuple[str, ...], valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        head = ["POST /v1/jobs HTTP/1.1", "Host: 127.0.0.1", *(f"Content-Length: {length}" for length in lengths)]
        wire.writer.write("\r\n".join([*head, "", "{}"]).encode())
        answer = await asyncio.wait_for(wire.reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_head_has_a_limit(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 70_000)
        answer = await asyncio.wait_for(wire.reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_client_reads_a_refusal_before_it_has_sent_all(valkey: ValkeyProcess, tmp_path: Path) -> None:
    body = b"x" * 20_000_000
    async with serving(valkey.url, tmp_path) as service, connected(service) as wire:
        wire.writer.write(request("Connection: close", body=body))
        await wire.writer.drain()  # failed before: the connection was reset
        status, headers, _ = await wire.read()
        assert (status, headers["connection"]) == (413, "close")
        async with asyncio.timeout(10):
            assert await wire.reader.read() == b""


async def test_a_client_reads_that_its_request_crashed_before_it_has_sent_all(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    async with serving(valkey.url, tmp_path) as service:

        @service.app.post("/bug")
        async def bug() -> None:
            raise RuntimeError("a bug")

        async with connected(service) as wire:
            wire.writer.write(request("Connection: close", body=b"x" * 20_000_000, path="/bug"))
            await wire.writer.drain()  # failed before: the connection was reset
            assert (await wire.read())[0] == 500
