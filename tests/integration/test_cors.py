"""Pages of other origins (CORS): refused by default, and served where `cors_origins` names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import load_settings, require_safe_access
from penstock.errors import ConfigError
from tests.support.service import assert_problem, serving
from tests.support.valkey import ValkeyProcess

MAPS = "https://maps.example.org"
JOB = {"model": "echo", "input": {"text": "hello"}}


def preflight(origin: str, verb: str = "POST") -> dict[str, str]:
    asked = "authorization,content-type,idempotency-key,x-stainless-lang"
    return {"Origin": origin, "Access-Control-Request-Method": verb, "Access-Control-Request-Headers": asked}


async def test_no_other_origin_is_allowed_by_default(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys") as service:
        for answer in (
            await service.http.options("/v1/jobs", headers=preflight(MAPS)),
            await service.http.get("/livez", headers={"Origin": MAPS}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control-")]


async def test_the_named_origin_may_call_and_read(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, cors_origins=[MAPS]) as service:
        allowed = await service.http.options("/v1/jobs", headers=preflight(MAPS))
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, MAPS)
        assert "x-stainless-lang" in allowed.headers["access-control-allow-headers"]
        assert "PUT" in allowed.headers["access-control-allow-methods"]
        headers = {"Origin": MAPS, "Sec-Fetch-Site": "cross-site"}
        sent = await service.http.post("/v1/jobs", json=JOB, headers=headers)
        assert (sent.status_code, sent.headers["access-control-allow-origin"]) == (202, MAPS)
        assert "Location" in sent.headers["access-control-expose-headers"]
        wrong = await service.http.post("/v1/jobs", json={}, headers=headers)
        assert wrong.headers["access-control-allow-origin"] == MAPS  # a page reads errors, too
        for answer in (allowed, sent):
            assert "access-control-allow-credentials" not in answer.headers


async def test_another_origin_gets_nothing(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, cors_origins=[MAPS]) as service:
        for origin in ("https://evil.test", f"{MAPS}:444", "http://maps.example.org", "null"):
            refused = await service.http.options("/v1/jobs", headers=preflight(origin))
            assert (refused.status_code, "access-control-allow-origin" in refused.headers) == (400, False)
            answer = await service.http.post("/v1/jobs", json=JOB, headers={"Origin": origin})
            assert_problem(answer, 403, "origin_refused")
            assert "access-control-allow-origin" not in answer.headers


async def test_with_keys_every_origin_may_be_allowed_without_credentials(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, access="keys", cors_origins=["*"]) as service:
        allowed = await service.http.options("/v1/jobs", headers=preflight("https://any.test"))
        assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "*")
        answer = await service.http.get("/v1/jobs", headers={"Origin": "https://any.test"})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, "*")
        assert "access-control-allow-credentials" not in {**allowed.headers, **answer.headers}


def test_without_keys_not_every_page_may_call() -> None:
    with pytest.raises(ConfigError, match="any page that you visit"):
        require_safe_access(load_settings(cors_origins=["*"]))
    require_safe_access(load_settings(cors_origins=["*"], access="keys"))
    require_safe_access(load_settings(cors_origins=["http://localhost:3000"]))


@pytest.mark.parametrize(
    "origin",
    ["maps.example.org", f"{MAPS}/", f"{MAPS}/map", "https://", "ftp://a", "https://a@b", "null", "https://*.test?a"],
)
def test_an_origin_has_a_scheme_and_a_host_alone(origin: str) -> None:
    with pytest.raises(ConfigError, match="is not an origin"):
        load_settings(cors_origins=[origin])


def test_the_star_stands_alone() -> None:
    with pytest.raises(ConfigError, match="stands for every origin"):
        load_settings(cors_origins=["*", MAPS])
