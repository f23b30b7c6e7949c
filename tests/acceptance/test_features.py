"""OGC API - Features over the polygons of jobs, in real processes: pages and filters as by shapely, and GDAL."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
import shapely
from pyproj import Transformer

from penstock.jobs import JobKey
from penstock.processors.geo.read.gdal import pyogrio
from tests.support.made_jobs import MadeJobs, making
from tests.support.stack import Stack, free_port, running
from tests.support.tile_service import SECRET, beside, plain_env, tenant_key

pytestmark = pytest.mark.breadth

FGB = "application/vnd.flatgeobuf"
COUNT = 500
ITEM = {
    "properties": {"datetime": None, "start_datetime": "2026-03-01T10:00:00Z", "end_datetime": "2026-03-05T10:00:00Z"}
}


@dataclass(frozen=True)
class Site:
    """A service that asks for keys, and its features with the polygons of two jobs."""

    stack: Stack
    made: MadeJobs
    url: str
    key: str
    other_key: str
    #: A job with COUNT polygons and a STAC item, and their shapes in longitude and latitude.
    job: JobKey
    shapes: Any

    @property
    def items(self) -> str:
        """The address of the polygons."""
        return f"{self.url}/collections/{self.job.id}:polygons/items"

    def get(self, url: str, *, key: str | None = None, **query: Any) -> httpx2.Response:
        """Return the answer to a request with the key of the jobs' tenant, or another."""
        return httpx2.get(url, params=query or None, headers={"Authorization": f"Bearer {key or self.key}"}, timeout=60)

    def numbers(self, **query: Any) -> list[int]:
        """Return the numbers of the polygons that a filter leaves, over all pages."""
        found, url = [], self.items
        answer = self.get(url, **query).json()
        while True:
            found += [feature["properties"]["number"] for feature in answer["features"]]
            following = [link["href"] for link in answer["links"] if link["rel"] == "next"]
            if not following:
                return found
            answer = self.get(following[0]).json()


def squares(rng: np.random.Generator) -> Any:
    """Return COUNT squares, some with a hole, in EPSG:32633."""
    x, y = rng.uniform(400_000, 420_000, COUNT), rng.uniform(5_000_000, 5_020_000, COUNT)
    side = rng.uniform(20, 900, COUNT)
    shapes = shapely.box(x, y, x + side, y + side)
    holes = shapely.box(x + side / 4, y + side / 4, x + side / 2, y + side / 2)
    return np.where(np.arange(COUNT) % 3 == 0, shapely.difference(shapes, holes), shapes)


def write(path: Path, shapes: Any) -> None:
    fields = [np.arange(len(shapes), dtype=np.int32), np.array([f"č{at}" for at in range(len(shapes))], dtype=object)]
    pyogrio.raw.write(
        path, shapely.to_wkb(shapes), fields, ["number", "name"], driver="FlatGeobuf", geometry_type="Polygon",
        crs="EPSG:32633",
    )  # fmt: skip


def lonlat(shapes: Any) -> Any:
    to = Transformer.from_crs(32633, 4326, always_xy=True)
    return shapely.transform(shapely.segmentize(shapes, 50), lambda xy: np.stack(to.transform(*xy.T), axis=1))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("features")
    port, variables = free_port(), {"PENSTOCK_SECRET": SECRET}
    key, other = (tenant_key(data, tenant, variables) for tenant in ("acme", "other"))
    shapes = squares(np.random.default_rng(6))
    write(data / "polygons.fgb", shapes)
    with (
        running(data, api_key=key, options=("--keys",), **variables) as stack,
        making(data, tenant="acme") as made,
        beside("features", stack.url, port),
    ):
        job = made.submit(metadata={"campaign": "spring"})
        claim = made.claim()
        content = (data / "polygons.fgb").read_bytes()
        files = [made.artifact(claim, name, content, FGB) for name in ("polygons.fgb", "d 1/extent.fgb")]
        item = made.artifact(claim, "item.json", json.dumps(ITEM).encode(), "application/geo+json")
        made.succeed(claim, *files, item)
        yield Site(stack, made, f"http://127.0.0.1:{port}", key, other, job, lonlat(shapes))


def test_each_file_of_polygons_is_a_collection_of_its_tenant(site: Site) -> None:
    landing = site.get(f"{site.url}/").json()
    links = {link["rel"]: link["href"] for link in landing["links"]}
    assert {"self", "service-desc", "conformance", "data"} <= links.keys()
    conforms = site.get(links["conformance"]).json()["conformsTo"]
    assert "http://www.opengis.net/spec/ogcapi-features-1/1.0/conf/core" in conforms
    assert site.get(links["service-desc"]).json()["openapi"].startswith("3.1")

    found = {each["id"]: each for each in site.get(links["data"]).json()["collections"]}
    assert set(found) == {f"{site.job.id}:polygons", f"{site.job.id}:d 1~extent"}
    assert "campaign=spring" in found[f"{site.job.id}:polygons"]["description"]
    [own] = [link["href"] for link in found[f"{site.job.id}:d 1~extent"]["links"] if link["rel"] == "self"]
    extent = site.get(own).json()["extent"]
    west, south, east, north = shapely.total_bounds(site.shapes)
    left, bottom, right, top = extent["spatial"]["bbox"][0]
    assert west - 0.003 < left <= west < east <= right < east + 0.003
    assert south - 0.003 < bottom <= south < north <= top < north + 0.003
    assert extent["temporal"]["interval"] == [["2026-03-01T10:00:00+00:00", "2026-03-05T10:00:00+00:00"]]


def test_other_tenants_and_callers_without_a_key_see_nothing(site: Site) -> None:
    assert site.get(f"{site.url}/collections", key=site.other_key).json()["collections"] == []
    for url in (site.items, f"{site.items}/0", site.items.removesuffix("/items")):
        answer = site.get(url, key=site.other_key)
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_job")
        assert httpx2.get(url).status_code == 401
        assert httpx2.get(url, auth=("any", site.key)).status_code == 200
    assert httpx2.get(f"{site.url}/collections", headers={"Host": "evil.example"}).status_code == 400


def test_pages_have_all_polygons_once_as_shapely_places_them(site: Site) -> None:
    first = site.get(site.items, limit=7).json()
    assert (first["numberReturned"], first["numberMatched"], len(first["features"])) == (7, COUNT, 7)
    assert sorted(site.numbers(limit=99)) == list(range(COUNT))
    assert site.numbers(limit=COUNT) == site.numbers(limit=33)
    answer = site.get(site.items, limit=10_000)
    assert answer.headers["content-type"] == "application/geo+json"
    for feature in answer.json()["features"]:
        number = feature["properties"]["number"]
        assert feature["properties"]["name"] == f"č{number}"
        shape = shapely.from_geojson(json.dumps(feature["geometry"]))
        # 1e-7 degrees are a centimetre.
        assert shapely.hausdorff_distance(shape, site.shapes[number]) < 1e-6
        assert shape.exterior.is_ccw
    one = site.get(f"{site.items}/{first['features'][3]['id']}").json()
    assert (one["geometry"], one["properties"]) == (
        first["features"][3]["geometry"],
        first["features"][3]["properties"],
    )
    assert site.get(f"{site.items}/{COUNT}").status_code == 404
    assert site.get(f"{site.items}/x").status_code == 404


def test_a_box_leaves_the_polygons_that_meet_it(site: Site) -> None:
    west, south, east, north = shapely.total_bounds(site.shapes)
    rng = np.random.default_rng(7)
    for _ in range(8):
        x, y = np.sort(rng.uniform(west, east, 2)), np.sort(rng.uniform(south, north, 2))
        box = shapely.box(x[0], y[0], x[1], y[1])
        expected = np.flatnonzero(shapely.intersects(site.shapes, box)).tolist()
        bbox = f"{x[0]:.12f},{y[0]:.12f},{x[1]:.12f},{y[1]:.12f}"
        assert sorted(site.numbers(bbox=bbox, limit=50)) == expected
    assert len(site.numbers(bbox="-180,-90,180,90", limit=1000)) == COUNT
    assert len(site.numbers(bbox="-180,-90,-10,180,90,10", limit=1000)) == COUNT
    assert site.numbers(bbox="100,10,101,11") == []
    # West of the antimeridian and on around the world to the middle of the polygons.
    middle = (west + east) / 2
    expected = np.flatnonzero(shapely.bounds(site.shapes)[:, 0] <= middle)
    assert sorted(site.numbers(bbox=f"170,-90,{middle},90", limit=1000)) == expected.tolist()


@pytest.mark.parametrize(
    ("interval", "some"),
    [
        ("2026-03-05T10:00:00Z", True), ("2026-03-03T00:00:00Z/..", True), ("../2026-03-01T12:00:00Z", True),
        ("2026-01-01T00:00:00Z/2026-12-31T00:00:00Z", True), ("2026-03-05T12:00:00+02:00", True),
        ("2026-03-05T10:00:01Z", False), ("../2026-03-01T09:59:59Z", False),
    ],
)  # fmt: skip
def test_a_time_leaves_the_polygons_of_scenes_of_then(site: Site, interval: str, some: bool) -> None:
    answer = site.get(site.items, datetime=interval, limit=5).json()
    assert (answer["numberReturned"], answer["numberMatched"]) == ((5, COUNT) if some else (0, 0))


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"}, {"limit": "x"}, {"offset": "-1"}, {"bbox": "1,2,3"}, {"bbox": "1,2,3,nan"}, {"bbox": "0,9,1,8"},
        {"bbox": "0,0,200,1"}, {"datetime": "yesterday"}, {"datetime": "../.."}, {"name": "water"},
        {"datetime": "2026-03-01"}, {"datetime": "2026-02-01T00:00:00Z/2026-01-01T00:00:00Z"},
    ],
)  # fmt: skip
def test_wrong_parameters_are_refused(site: Site, query: dict[str, str]) -> None:
    answer = site.get(site.items, **query)
    assert (answer.status_code, answer.json()["code"]) == (400, "request_refused")


def test_a_file_that_is_no_flatgeobuf_is_not_opened(site: Site) -> None:
    job = site.made.submit()
    claim = site.made.claim()
    site.made.succeed(claim, site.made.artifact(claim, "polygons.fgb", b'{"type": "FeatureCollection"}', FGB))
    answer = site.get(f"{site.url}/collections/{job.id}:polygons/items")
    assert (answer.status_code, answer.json()["code"]) == (422, "media_unreadable")


def test_a_page_of_too_many_points_is_refused_and_a_smaller_one_is_not(site: Site, tmp_path: Path) -> None:
    turn = np.linspace(0, 2 * np.pi, 600_000, endpoint=False)
    circle = shapely.polygons(np.stack([500_000 + 1e5 * np.cos(turn), 5e6 + 1e5 * np.sin(turn)], axis=1))
    write(tmp_path / "polygons.fgb", np.array([circle, circle]))
    job = site.made.submit()
    claim = site.made.claim()
    site.made.succeed(claim, site.made.artifact(claim, "polygons.fgb", (tmp_path / "polygons.fgb").read_bytes(), FGB))
    url = f"{site.url}/collections/{job.id}:polygons/items"
    answer = site.get(url, limit=2)
    assert (answer.status_code, answer.json()["detail"][:45]) == (400, "the polygons have more than 1,000,000 points:")
    answer = site.get(url, limit=1)
    assert (answer.json()["numberReturned"], answer.json()["numberMatched"]) == (1, 2)


def test_a_reader_that_was_killed_is_replaced(site: Site) -> None:
    assert site.get(site.items, limit=1).status_code == 200
    [parent] = [each for each in psutil.Process().children() if "features" in each.cmdline()]
    readers = [each for each in parent.children() if "spawn_main" in " ".join(each.cmdline())]
    assert readers
    for reader in readers:
        reader.kill()
    answers = [site.get(site.items, limit=1).status_code for _ in range(3)]
    assert answers[-1] == 200
    assert set(answers) <= {200, 503}


def test_gdal_reads_a_collection_page_by_page(site: Site, tmp_path: Path) -> None:
    if shutil.which("ogr2ogr") is None:
        reason = "needs ogr2ogr (infra/apt.txt: gdal-bin)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    out = tmp_path / "out.geojson"
    command = ["ogr2ogr", str(out), f"OAPIF:{site.url}", f"{site.job.id}:polygons", "-oo", "PAGE_SIZE=120"]
    env = plain_env() | {"GDAL_HTTP_HEADERS": f"Authorization: Bearer {site.key}"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads(out.read_text())["features"]
    assert sorted(feature["properties"]["number"] for feature in read) == list(range(COUNT))
    found = [shapely.from_geojson(json.dumps(feature["geometry"])) for feature in read]
    assert sum(map(shapely.area, found)) == pytest.approx(shapely.area(site.shapes).sum(), rel=1e-6)
