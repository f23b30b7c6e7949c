"""Stalled bodies: the request is answered, and its connection is closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from tests.integration.test_api_events import listening
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess


async def stalled(service: Service, method: str, target: str, content_type: str) -> str:
    """Send three bytes of ten and return all that is said until the connection is closed."""
    async with listening(service) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port)
        head = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {content_type}", "Content-Length: 10"]
        writer.write("\r\n".join([*head, "", "abc"]).encode())
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
    return answer.decode()


async def test_a_request_whose_body_stalls_is_answered_and_closed(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, body_idle_s=0.05) as service:
        answer = await stalled(service, "POST", "/v1/jobs", "application/json")
    assert answer.startswith("HTTP/1.1 408 ")
    assert '"code":"body_timeout"' in answer
    assert '"detail":"no data arrived for 0.05 s"' in answer


async def test_an_upload_that_stalls_leaves_nothing(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, body_idle_s=0.05) as service:
        wanted = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 10}
        link = urlsplit((await service.http.post("/v1/uploads", json=wanted)).json()["url"])
        answer = await stalled(service, "PUT", f"{link.path}?{link.query}", "image/tiff")
        assert list((service.settings.spool_dir / "uploads").iterdir()) == []
        assert list(service.objects.list("")) == []
    assert answer.startswith("HTTP/1.1 408 ")
