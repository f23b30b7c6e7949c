"""The page at `/ui`, and the routes that were made for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
from starlette.applications import Starlette
from starlette.routing import Mount

from penstock.api.page import Page
from tests.support.service import Service, serving
from tests.support.valkey import ValkeyProcess


def a_page(bundle: Path) -> httpx2.AsyncClient:
    app = Starlette(routes=[Mount("/ui", Page(None, bundle))])
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1")


def directives(answer: httpx2.Response) -> dict[str, str]:
    pairs = (part.strip().partition(" ") for part in answer.headers["content-security-policy"].split(";"))
    return {name: value for name, _, value in pairs}


async def test_a_bundle_is_served_with_a_strict_policy(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>Penstock</title>")
    (tmp_path / "main.js").write_text("export {}")
    async with a_page(tmp_path) as http:
        page, script, missing = [await http.get(f"/ui/{name}") for name in ("", "main.js", "none.js")]
    assert (page.status_code, script.status_code, missing.status_code) == (200, 200, 404)
    assert script.headers["content-type"].startswith("text/javascript")
    policy = directives(page)
    assert (policy["default-src"], policy["style-src"], policy["connect-src"]) == ("'none'", "'self'", "'self' data:")
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe-inline" not in str(policy)


async def test_without_a_bundle_the_page_says_how_to_build_it(tmp_path: Path) -> None:
    async with a_page(tmp_path / "nowhere") as http:
        answer = await http.get("/ui/")
    assert answer.status_code == 503
    assert "make page" in answer.text
    assert directives(answer)["script-src"].startswith("'self'")


async def test_the_policy_names_the_store_of_signed_links(valkey: ValkeyProcess, tmp_path: Path) -> None:
    s3 = {"endpoint_url": "https://store.test:9000", "access_key_id": "a", "secret_access_key": "b"}
    async with serving(valkey.url, tmp_path, object_store="s3://results", s3=s3) as service:
        policy = directives(await service.http.get("/ui/"))
    assert policy["connect-src"] == "'self' data: https://store.test:9000"
    assert policy["img-src"].endswith("data: https://store.test:9000")


async def test_links_lead_to_artifacts_and_uploads_and_support_ranges(service: Service) -> None:
    file = {"filename": "a.tif", "content_type": "image/tiff", "size_bytes": 5}
    upload = (await service.http.post("/v1/uploads", json=file)).json()
    await service.http.put(upload["url"], headers=upload["headers"], content=b"12345")
    told = {"text": "hi", "scene": upload["media"]}
    job = (await service.http.post("/v1/jobs", json={"model": "echo", "input": told})).json()
    claim = await service.claim()
    await service.succeed(claim, artifacts=(service.store_artifact(claim, "map.tif", b"a map", "image/tiff"),))

    found = (await service.http.get(f"/v1/jobs/{job['id']}/links")).json()

    named = [(link["kind"], link["name"], link["pointer"]) for link in found["links"]]
    assert named == [("artifact", "map.tif", None), ("input", "a.tif", "/scene")]
    ranges = [await service.http.get(link["url"], headers={"Range": "bytes=1-3"}) for link in found["links"]]
    assert [(answer.status_code, answer.content) for answer in ranges] == [(206, b" ma"), (206, b"234")]


async def test_a_tenants_changes_are_streamed_and_no_others(service: Service) -> None:
    ask = {"Accept": "application/json"}
    waiting = asyncio.create_task(service.http.get("/v1/events?wait=30", headers=ask))
    while not service.app.state.services.jobs._changes._watches:
        await asyncio.sleep(0)
    await service.submit()
    assert (await waiting).json() == {"changed": True}
    while (await service.http.get("/v1/events?wait=1", headers=ask)).json() != {"changed": False}:
        pass  # what the submission published is on its way


async def test_an_open_service_has_one_tenant_with_all_scopes(service: Service) -> None:
    view = (await service.http.get("/v1/key")).json()
    assert (view["tenant"], view["open"], view["name"]) == ("default", True, None)
    assert set(view["scopes"]) == {"read", "submit", "webhooks", "monitor", "events", "admin"}
    assert view["limits"]["jobs"] == service.settings.max_tenant_jobs
