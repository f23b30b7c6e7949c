"""`penstock search` as a user types it, against a STAC API on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.catalogues import penstock
from tests.support.stac_server import StacApi, item

BEGIN = datetime(2026, 5, 1, 10, tzinfo=UTC)
AREA = {"type": "Polygon", "coordinates": [[[10.2, 45.2], [10.4, 45.2], [10.4, 45.4], [10.2, 45.2]]]}


@pytest.fixture
def api() -> Iterator[StacApi]:
    found = [
        item(f"scene-{day}", "s2", BEGIN + timedelta(days=day), (10, 45, 11, 46),
             {"B04": {"href": "https://far.example/B04.tif", "file:size": 2_500_000}}, cloud=10 * day)
        for day in range(4)
    ]  # fmt: skip
    far = item("far", "s2", BEGIN, (40, 45, 41, 46), {}, cloud=0)
    with StacApi([*found[::-1], far]).serve() as served:
        yield served


@pytest.fixture
def area(tmp_path: Path) -> Path:
    path = tmp_path / "aoi.geojson"
    path.write_text(json.dumps(AREA))
    return path


def run(folder: Path, api: StacApi, *words: str, collection: str = "s2") -> subprocess.CompletedProcess[str]:
    return penstock(folder, "search", collection, "--stac", api.url, *words)


def test_a_table_has_time_cloud_id_and_size(api: StacApi, area: Path, tmp_path: Path) -> None:
    done = run(tmp_path, api, "--area", str(area), "--from", "2026-05-01", "--to", "2026-05-03", "--cloud-below", "20")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["time", "cloud", "id", "size"],
        ["2026-05-01", "10:00:00", "0.0", "%", "scene-0", "2.5", "MB"],
        ["2026-05-02", "10:00:00", "10.0", "%", "scene-1", "2.5", "MB"],
    ]


def test_a_last_day_is_included(api: StacApi, area: Path, tmp_path: Path) -> None:
    times = {"2026-05-02T09:00:00": 1, "2026-05-02T12:00:00+02:00": 2, "20260502T095959": 1}
    for last, ids in {"2026-05-02": 2, "20260502": 2, "2026-W18-6": 2, **times}.items():
        done = run(tmp_path, api, "--area", str(area), "--to", last, "--ids")
        assert done.stdout.split() == [f"scene-{day}" for day in range(ids)], last


def test_the_items_and_the_lines_of_a_batch_are_json(api: StacApi, area: Path, tmp_path: Path) -> None:
    done = run(tmp_path, api, "--area", str(area), "--json", "--filter", "eo:cloud_cover >= 20")
    found = json.loads(done.stdout)
    assert found["type"] == "FeatureCollection"
    assert [(each["id"], each["geometry"]["type"]) for each in found["features"]] == [
        ("scene-2", "Polygon"), ("scene-3", "Polygon"),
    ]  # fmt: skip
    done = run(tmp_path, api, "--area", str(area), "--jobs", "scene")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["custom_id"] for line in lines] == [f"scene-{day}" for day in range(4)]
    assert {json.dumps(line["input"]["area"]) for line in lines} == {json.dumps(AREA)}


@pytest.mark.parametrize(
    "change",
    [
        {"properties": None}, {"assets": {"a": "text", "b": None}}, {"assets": {"a": {"file:size": 10**400}}},
        {"id": "half \ud800 \x1b[31m"}, {"properties": {"datetime": 5, "eo:cloud_cover": 10**400}},
    ],
)  # fmt: skip
def test_a_malformed_item_is_printed_and_controls_no_terminal(change: dict[str, object], tmp_path: Path) -> None:
    odd = item("odd", "s2", BEGIN, (10, 45, 11, 46), {}, cloud=0) | change
    with StacApi([odd]).serve() as api:
        for words in ([], ["--ids"], ["--json"], ["--jobs", "scene"]):
            done = run(tmp_path, api, *words)
            assert (done.returncode, "Traceback" in done.stderr, "\x1b" in done.stdout) == (0, False, False), (
                done.stderr
            )
        (line,) = done.stdout.splitlines()
        assert json.loads(line)["custom_id"] == odd["id"]


def test_a_query_of_the_address_is_sent_with_each_request(api: StacApi, tmp_path: Path) -> None:
    for path in ("?key=1", "/?key=1", "/search?key=1", "/search/?key=1"):
        api.requests.clear()
        done = penstock(tmp_path, "search", "s2", "--stac", f"{api.url}{path}", "--ids", "--limit", "1")
        assert (done.returncode, len(done.stdout.split())) == (0, 1), done.stderr
        assert api.requests[0][1] == "/?key=1"


def test_a_limit_says_that_there_may_be_more(api: StacApi, tmp_path: Path) -> None:
    done = run(tmp_path, api, "--limit", "2", "--ids")
    assert (len(done.stdout.split()), "there may be more" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--cloud-below", "0"], 1, "no item of s2 matches"),
        (["--area", "gone.geojson"], 2, "--area gone.geojson: neither a JSON object nor a file: No such file"),
        (["--area", "text.geojson"], 2, "--area: not JSON"),
        (["--area", "point.geojson"], 2, "--area: no area"),
        (["--area", "utm.geojson"], 2, "--area: no area:"),
        (["--area", "metres.geojson"], 2, "has the longitude 500000: write degrees from -180 to 180"),
        (["--from", "May"], 2, "'--from': May: write 2026-05-31"),
        (["--to", "9999-12-31T23:00:00-14:00"], 2, "write 2026-05-31"),
        (["--filter", "cloud <"], 2, "--filter: is no CQL2 text"),
        (["--from", "0001-01-01T00:00:00+14:00"], 2, "write 2026-05-31"),
        (
            ["--from", "2026-05-02", "--to", "2026-05-01"],
            2,
            "--from 2026-05-02T00:00:00Z lies after --to 2026-05-01T23:59:59Z",
        ),
        (["--jobs", "all"], 2, "write scene, mosaic or series"),
        (["--jobs", "scene", "--json"], 2, "write one of --json, --ids and --jobs"),
    ],
)
def test_an_error_is_one_sentence(api: StacApi, words: list[str], code: int, text: str, tmp_path: Path) -> None:
    (tmp_path / "text.geojson").write_text("no")
    (tmp_path / "point.geojson").write_text('{"type": "Point", "coordinates": [0, 0]}')
    (tmp_path / "utm.geojson").write_text('{"bbox": [0, 0, 1, 1], "crs": "EPSG:32633"}')
    (tmp_path / "metres.geojson").write_text('{"bbox": [500000, 0, 500001, 1]}')
    done = run(tmp_path, api, *words)
    said = " ".join(done.stderr.replace("│", " ").split())
    assert (done.returncode, text in said, "Traceback" in said) == (code, True, False), said


def test_another_collection_or_server_is_an_error(api: StacApi, tmp_path: Path) -> None:
    done = run(tmp_path, api, collection="s3")
    assert (done.returncode, "has no collection 's3'; it has 1, such as s2" in done.stderr) == (3, True), done.stderr
    for url in ("http://127.0.0.1:1", "ftp://127.0.0.1/", "nowhere", "http://[::1/"):
        done = penstock(tmp_path, "search", "s2", "--stac", url)
        assert done.returncode in (2, 3)
        assert "Traceback" not in done.stderr


def test_the_profiles_of_the_settings_apply(api: StacApi, tmp_path: Path) -> None:
    api.needs = ("Authorization", "Bearer s3cr3t-token")
    assert "access profile" in run(tmp_path, api).stderr
    (tmp_path / "penstock.toml").write_text(
        '[[access_profiles]]\nname = "theirs"\nkind = "bearer"\nsecret = { env = "THEIR_TOKEN" }\n'
        f'hosts = ["{api.host}"]\n'
    )
    done = penstock(tmp_path, "search", "s2", "--stac", api.url, "--ids", THEIR_TOKEN="s3cr3t-token")
    assert done.stdout.split() == ["far", "scene-0", "scene-1", "scene-2", "scene-3"], done.stderr
    done = penstock(tmp_path, "search", "s2", "--stac", api.url, "--ids", THEIR_TOKEN="another-token")
    assert "refused the credentials of the access profile 'theirs'" in done.stderr
    assert "another-token" not in done.stderr + done.stdout
