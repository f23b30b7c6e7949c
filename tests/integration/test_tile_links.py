"""Links to map tiles: the API signs them for the owner of a job, and tells whoever has one which file it is for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from penstock.jobs import JobKey, State
from penstock.storage.redis.records import Outcome
from penstock.storage.signing import SignedLink, sign_link
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

SECRET = "secret"
TILES = "https://maps.example.org/tiles"


@pytest.fixture
async def service(valkey: ValkeyProcess, tmp_path: Path) -> AsyncIterator[Service]:
    async with serving(valkey.url, tmp_path, tiles_url=f"{TILES}/", secret=SECRET) as service:
        yield service


async def finished(service: Service, data: Any = None) -> dict[str, Any]:
    """Return a job with an upload as its input and files in folders as its result."""
    wanted = {"filename": "scene.TIF", "content_type": "image/tiff", "size_bytes": 3}
    link = (await service.http.post("/v1/uploads", json=wanted)).json()
    sent = {name: value for name, value in link["headers"].items() if name != "Content-Length"}
    await service.http.put(link["url"], content=b"abc", headers=sent)
    job = await service.submit(input={"text": "a", "scene": link["media"]})
    claim = await service.claim()
    files = [service.store_artifact(claim, name, b"12345", "image/tiff") for name in ("a b/classes.tif", "stats.json")]
    await service.end(claim, Outcome(State.SUCCEEDED, data=data or {}, artifacts=tuple(files)))
    return job


async def links(service: Service, job: dict[str, Any]) -> dict[str, Any]:
    answer = await service.http.get(f"/v1/jobs/{job['id']}/links")
    assert answer.status_code == 200, answer.text
    return {link["name"]: link for link in answer.json()["links"]}


async def ask(service: Service, link: str, **change: str) -> Any:
    """Ask the API as `penstock tiles` does."""
    parts = urlsplit(link)
    path = parts.path.removeprefix("/tiles").rsplit("/", 1)[0]
    return await service.http.get(f"/v1/tiles{path}", params=dict(parse_qsl(parts.query)) | change)


async def test_rasters_have_links_that_name_their_file_and_no_other(service: Service) -> None:
    job = await finished(service)
    found = await links(service, job)
    assert found["stats.json"]["tilejson"] is None
    for name in ("a b/classes.tif", "scene.TIF"):
        assert found[name]["tilejson"].startswith(f"{TILES}/default/{job['id']}/")
        assert found[name]["xyz"] == found[name]["tilejson"].replace("tilejson.json", "{z}/{x}/{y}.png")
        answer = await ask(service, found[name]["tilejson"])
        assert answer.status_code == 200, answer.text
        assert answer.json()["xyz"] == found[name]["xyz"]
        read = await service.http.get(answer.json()["url"])
        assert read.content == (b"abc" if name == "scene.TIF" else b"12345")


async def test_links_are_the_same_for_an_hour_so_that_browsers_keep_the_tiles(service: Service) -> None:
    job = await finished(service)
    first, again = await links(service, job), await links(service, job)
    assert first["scene.TIF"]["xyz"] == again["scene.TIF"]["xyz"]
    expires_s = int(dict(parse_qsl(urlsplit(first["scene.TIF"]["xyz"]).query))["expires"])
    assert expires_s % 3600 == 0
    assert 7 * 86_400 <= expires_s - time.time() + 60 <= 7 * 86_400 + 3660


async def test_altered_expired_and_foreign_signatures_are_refused(service: Service) -> None:
    job = await finished(service)
    found = await links(service, job)
    link = found["a b/classes.tif"]["tilejson"]
    assert_problem(await ask(service, link, expires="9999999999"), 403, "link_refused")
    assert_problem(await ask(service, link, signature="0" * 64), 403, "link_refused")
    assert_problem(await ask(service, link.replace("classes.tif", "other.tif")), 403, "link_refused")
    assert_problem(await ask(service, link.replace("/default/", "/other/")), 403, "link_refused")
    path = f"default/{job['id']}/artifact/a b/classes.tif"
    for method, expires_s in (("TILES", 1), ("GET", 9_999_999_999)):
        query = sign_link(SECRET, SignedLink(method, path, expires_s))
        assert_problem(await service.http.get(f"/v1/tiles/{path}?{query}"), 403, "link_refused")
    # Nor does a link to tiles read an object of this name.
    query = sign_link(SECRET, SignedLink("TILES", path, 9_999_999_999))
    assert_problem(await service.http.get(f"/v1/local/{path}?{query}"), 403, "link_refused")


async def test_a_signed_link_to_what_the_job_has_not_finds_nothing(service: Service) -> None:
    job = await finished(service)
    for name in ("artifact/../../x.tif", "artifact/classes.tif", "input/text", "input/scene/0"):
        path = f"default/{job['id']}/{name}"
        query = sign_link(SECRET, SignedLink("TILES", path, 9_999_999_999))
        answer = await service.http.get(f"/v1/tiles/{path.replace('..', '%2e%2e')}?{query}")
        assert_problem(answer, 404, "unknown_artifact")
    nobodys = f"default/{JobKey('default', 'none').id}/artifact/classes.tif"
    query = sign_link(SECRET, SignedLink("TILES", nobodys, 9_999_999_999))
    assert (await service.http.get(f"/v1/tiles/{nobodys}?{query}")).status_code in (404, 422)


async def test_an_input_is_drawn_in_the_bands_that_the_statistics_name(service: Service) -> None:
    bands = [{"name": "red", "index": 3}, {"name": "green", "index": 2}, {"name": "nir", "index": 4}]
    job = await finished(service, {"bands": bands, "radiometry": {"nodata": 0}})
    found = await links(service, job)
    answer = (await ask(service, found["scene.TIF"]["tilejson"])).json()
    assert (answer["bands"], answer["nodata"]) == ([3, 2, 1], 0)
    result = (await ask(service, found["a b/classes.tif"]["tilejson"])).json()
    assert (result["bands"], result["nodata"]) == (None, None)


async def test_a_deleted_job_has_no_tiles(service: Service) -> None:
    job = await finished(service)
    link = (await links(service, job))["scene.TIF"]["tilejson"]
    assert (await service.http.delete(f"/v1/jobs/{job['id']}")).status_code == 204
    assert (await ask(service, link)).status_code in (404, 410)


async def test_without_an_address_there_are_no_links_to_tiles(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, secret=SECRET) as service:
        found = await links(service, await finished(service))
        assert {link["tilejson"] for link in found.values()} == {None}
