"""Without API keys, only requests to the service's own names are served, and pages of others neither embed nor run."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.api.hosts import host_name
from tests.support.service import assert_problem, serving
from tests.support.valkey import ValkeyProcess

PATHS = ["/v1/jobs", "/openapi.json", "/docs", "/docs/static/swagger-ui.css", "/livez", "/nowhere", "/"]
INVALID = [
    "evil.test", "127.0.0.1:abc", "127.0.0.1:99999", "localhost@evil.test", "evil.test@localhost", "localhost/x",
    "localhost evil.test", "localhost,evil.test", "[::1", "::1", "", "127.0.0.1#", "127.0.0.1:80:80", "localhost\\",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_refuses_other_hosts(valkey: ValkeyProcess, tmp_path: Path, path: str) -> None:
    async with serving(valkey.url, tmp_path) as service:
        for host in INVALID:
            assert_problem(await service.http.get(path, headers={"Host": host}), 421, "host_refused")
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:65535", "penstock.localhost"):
            assert (await service.http.get(path, headers={"Host": host})).status_code != 421


async def test_with_keys_the_name_of_the_host_does_not_matter(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service:
        assert (await service.http.get("/livez", headers={"Host": "maps.test"})).status_code == 200


async def test_a_page_of_another_origin_changes_nothing(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service:
        answer = await service.http.post("/v1/jobs", json={}, headers={"Origin": "http://evil.test"})
        assert_problem(answer, 403, "origin_refused")


def test_host_names_lose_their_port_and_brackets() -> None:
    assert [host_name(text) for text in ("A.test:80", "[::1]", "[::1]:5", "a:")] == ["a.test", "::1", "::1", None]


@pytest.mark.parametrize("path", ["/docs", "/docs/oauth2-redirect"])
async def test_pages_run_their_own_scripts_only(valkey: ValkeyProcess, tmp_path: Path, path: str) -> None:
    async with serving(valkey.url, tmp_path) as service:
        page = await service.http.get(path)
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    inline = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    assert inline
    allowed = {f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in inline}
    assert set(policy["script-src"].split()) == {"'self'"} | allowed
    assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'")
    assert (page.headers["x-frame-options"], page.headers["x-content-type-options"]) == ("DENY", "nosniff")


async def test_files_of_pages_are_not_embedded_either(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path) as service:
        file = await service.http.get("/docs/static/swagger-ui-bundle.js")
        other = await service.http.get("/livez")
    assert (file.status_code, file.headers["x-frame-options"]) == (200, "DENY")
    assert "content-security-policy" not in other.headers
