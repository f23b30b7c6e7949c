"""Map tiles beside a service with keys: who may see them, and GDAL and Leaflet that show them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx2
import numpy as np
import pytest
from affine import Affine
from playwright.sync_api import expect

from penstock.jobs import JobKey
from penstock.processors.geo.read.gdal import rasterio
from penstock.storage.signing import SignedLink, sign_link
from tests.support.browser import UI, chromium, serious, tab, visit
from tests.support.ceph import Ceph
from tests.support.stack import free_port
from tests.support.tile_service import SECRET, TileService, beside, picture, plain_env, tile_at, tile_service

pytestmark = pytest.mark.breadth

LEAFLET = UI / "node_modules" / "leaflet" / "dist"
COLOURS = {0: (10, 20, 30, 255), 1: (200, 0, 0, 255), 2: (0, 180, 40, 255)}
ZOOM = 12
#: Reads the middle four tiles by GDAL's driver for tiled web maps.
_BY_TMS = """
import sys
import numpy as np, rasterio
from rasterio.windows import Window
document, column, row = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with rasterio.open(document) as file:
    np.save(sys.stdout.buffer, file.read(window=Window(column * 256, row * 256, 512, 512)))
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TileService]:
    with tile_service(tmp_path_factory.mktemp("tiles")) as found:
        yield found


def class_map(path: Path) -> Path:
    """Write classes of 20 x 20 px in a file of some 15 km."""
    small = np.random.default_rng(5).integers(0, 3, (60, 60)).astype(np.uint8)
    made = {"driver": "GTiff", "dtype": "uint8", "count": 1, "height": 1200, "width": 1200, "nodata": 255}
    transform = Affine(10, 0, 600_000, 0, -10, 5_300_000)
    with rasterio.open(path, "w", **made, crs="EPSG:32632", transform=transform, tiled=True) as file:
        file.write_colormap(1, COLOURS)
        file.write(np.kron(small, np.ones((20, 20), np.uint8)), 1)
    return path


@pytest.fixture(scope="module")
def job(service: TileService, tmp_path_factory: pytest.TempPathFactory) -> JobKey:
    return service.finished(class_map(tmp_path_factory.mktemp("map") / "classes.tif"))


def test_another_tenant_finds_no_job_and_gets_no_link(service: TileService, job: JobKey) -> None:
    headers = {"Authorization": f"Bearer {service.other_key}"}
    answer = httpx2.get(f"{service.stack.url}/v1/jobs/{job.id}/links", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")
    assert httpx2.get(f"{service.stack.url}/v1/jobs/{job.id}/links").status_code == 401


def test_altered_and_expired_links_are_refused(service: TileService, job: JobKey) -> None:
    link = service.links(job)["classes.tif"]
    tile = link["xyz"].format(z=ZOOM, x=2166, y=1426)
    assert httpx2.get(tile).status_code == 200
    path = f"{job.tenant}/{job.id}/artifact/classes.tif"
    expired = sign_link(SECRET, SignedLink("TILES", path, int(time.time()) - 1))
    for wrong in (
        tile.replace("signature=", "signature=0"),
        tile.replace("expires=", "expires=9"),
        tile.replace("classes.tif", "values.tif"),
        tile.replace("/acme/", "/other/"),
        tile.partition("?")[0],
        link["tilejson"].replace("signature=", "signature=0"),
        f"{service.url}/{path}/tilejson.json?{expired}",
    ):
        answer = httpx2.get(wrong)
        assert (answer.status_code, answer.json()["code"]) == (403, "link_refused"), wrong


def test_tiles_are_kept_by_caches_until_their_link_expires(service: TileService, job: JobKey) -> None:
    link = service.links(job)["classes.tif"]
    tile = link["xyz"].format(z=ZOOM, x=2166, y=1426)
    first = httpx2.get(tile, headers={"Origin": "https://maps.example.org"})
    assert first.headers["access-control-allow-origin"] == "*"
    age = int(first.headers["cache-control"].removeprefix("public, max-age=").removesuffix(", immutable"))
    assert 6 * 86_400 < age <= 7 * 86_400 + 3600
    again = httpx2.get(tile, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = httpx2.get(link["xyz"].format(z=ZOOM, x=2167, y=1426))
    assert other.headers["etag"] != first.headers["etag"]


def test_gdal_opens_the_tiles_as_one_raster(service: TileService, job: JobKey) -> None:
    link = service.links(job)["classes.tif"]
    x, y = tile_at(10.4, 47.8, ZOOM)
    server = link["xyz"].replace("&", "&amp;").format(z="${z}", x="${x}", y="${y}")
    document = f"""<GDAL_WMS><Service name="TMS"><ServerUrl>{server}</ServerUrl></Service>
        <DataWindow><UpperLeftX>-20037508.34</UpperLeftX><UpperLeftY>20037508.34</UpperLeftY>
        <LowerRightX>20037508.34</LowerRightX><LowerRightY>-20037508.34</LowerRightY>
        <TileLevel>{ZOOM}</TileLevel><TileCountX>1</TileCountX><TileCountY>1</TileCountY><YOrigin>top</YOrigin>
        </DataWindow><Projection>EPSG:3857</Projection><BlockSizeX>256</BlockSizeX><BlockSizeY>256</BlockSizeY>
        <BandsCount>4</BandsCount></GDAL_WMS>"""
    command = [sys.executable, "-c", _BY_TMS, document, str(x), str(y)]
    done = subprocess.run(command, env=plain_env(), check=True, capture_output=True)
    whole = np.frombuffer(done.stdout[-4 * 512 * 512 :], np.uint8).reshape(4, 512, 512)
    for down, across in ((0, 0), (0, 1), (1, 0), (1, 1)):
        tile = picture(httpx2.get(link["xyz"].format(z=ZOOM, x=x + across, y=y + down)).content)
        part = whole[:, down * 256 : down * 256 + 256, across * 256 : across * 256 + 256]
        assert (part.transpose(1, 2, 0) == tile).all()
        assert tile.any()


def test_leaflet_shows_the_tiles_on_a_page_of_another_origin(service: TileService, job: JobKey, tmp_path: Path) -> None:
    if not (LEAFLET / "leaflet.js").is_file():
        pytest.skip("needs Leaflet: make page")
    link = service.links(job)["classes.tif"]
    document = httpx2.get(link["tilejson"]).json()
    for name in ("leaflet.js", "leaflet.css"):
        (tmp_path / name).write_bytes((LEAFLET / name).read_bytes())
    (tmp_path / "index.html").write_text(f"""<!doctype html><link rel="stylesheet" href="leaflet.css">
        <script src="leaflet.js"></script><div id="map" style="width: 600px; height: 400px"></div><script>
        const [west, south, east, north] = {json.dumps(document["bounds"])};
        const map = L.map("map", {{ fadeAnimation: false }}).fitBounds([[south, west], [north, east]]);
        window.wrong = 0;
        L.tileLayer({json.dumps(link["xyz"])}, {{ maxNativeZoom: {document["maxzoom"]}, crossOrigin: true }})
          .on("tileerror", () => {{ window.wrong += 1; }}).on("load", () => {{ window.loaded = true; }}).addTo(map);
        </script>""")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with chromium() as browser:
            page = browser.new_page(viewport={"width": 640, "height": 440})
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for_function("window.loaded")
            assert page.evaluate("window.wrong") == 0
            shown = page.evaluate("""() => {
                const seen = new Set();
                for (const tile of document.querySelectorAll(".leaflet-tile")) {
                    const canvas = document.createElement("canvas");
                    canvas.width = canvas.height = 256;
                    const context = canvas.getContext("2d");
                    context.drawImage(tile, 0, 0);
                    const { data } = context.getImageData(0, 0, 256, 256);
                    for (let at = 0; at < data.length; at += 4) seen.add(data.slice(at, at + 4).join());
                }
                return [...seen];
            }""")
            page.screenshot(path=str(tmp_path / "leaflet.png"))
        server.shutdown()
    assert set(shown) == {"0,0,0,0", *(",".join(map(str, colour)) for colour in COLOURS.values())}


def test_the_page_shows_the_addresses_beside_the_map(service: TileService, job: JobKey) -> None:
    link = service.links(job)["classes.tif"]
    with (
        chromium() as browser,
        tab(browser, service.stack.url, key=service.key, permissions=["clipboard-read", "clipboard-write"]) as page,
    ):
        visit(page, f"#/jobs/{job.id}")
        page.get_by_text("Map tiles for other maps").click()
        row = page.get_by_role("region", name="Map tiles").get_by_role("row", name="classes.tif")
        expect(row.get_by_role("link", name="TileJSON")).to_have_attribute("href", link["tilejson"])
        row.get_by_role("button", name="Copy XYZ address of artifact classes.tif").click()
        expect(page.get_by_text("XYZ address of artifact classes.tif: copied.")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == link["xyz"]
        assert serious(page) == []


def test_rasters_in_a_bucket_are_read_by_ranges(ceph: Ceph, tmp_path: Path) -> None:
    with tile_service(tmp_path / "data", ceph) as service:
        link = service.links(service.finished(class_map(tmp_path / "classes.tif")))["classes.tif"]
        x, y = tile_at(10.4, 47.8, ZOOM)
        tile = httpx2.get(link["xyz"].format(z=ZOOM, x=x, y=y))
        assert tile.status_code == 200, tile.text
        assert (picture(tile.content)[..., 3] == 255).any()


def test_without_the_api_a_link_is_answered_later() -> None:
    port = free_port()
    with beside("tiles", f"http://127.0.0.1:{free_port()}", port):
        answer = httpx2.get(f"http://127.0.0.1:{port}/acme/1/artifact/classes.tif/0/0/0.png?expires=1&signature=1")
        assert (answer.status_code, answer.json()["code"]) == (503, "service_error")
        assert int(answer.headers["retry-after"]) > 0
