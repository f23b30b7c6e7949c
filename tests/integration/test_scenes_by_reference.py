"""Scenes that a job names by address: read by range in an IO process without network, and found by a STAC item."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config import Settings
from penstock.errors import (
    InvalidInput,
    MediaChanged,
    MediaNotFound,
    MediaRefused,
    MediaTooLarge,
    MissingBands,
    ProcessorFailed,
)
from penstock.intake.guard import GuardedClient
from penstock.intake.media import fetch_for_job, upload_key
from penstock.intake.partial import joined, without
from penstock.models import Model, media_to_share
from penstock.processors.base import Output, Prompt
from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.geo.request import SegmentationRequest
from penstock.processors.numbers import as_floats
from penstock.storage.objects.opening import open_store
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.job_media import JobMedia
from penstock.workers.named_media import fetch_named
from penstock.workers.processing import Processed, Work
from tests.support.geo.metadata import item
from tests.support.geo.scenes import NORTH_UP, by_value, make_model, pattern, read, write_scene
from tests.support.range_server import ServedFiles
from tests.support.web_server import Server

MIB = 2**20
UTM = "EPSG:32633"
SCHEMA = SegmentationRequest.model_json_schema()


@pytest.fixture(scope="module")
def pool() -> Iterator[IOPool]:
    with closing(IOPool(1, ForkOptions(1024 * MIB))) as pool:
        yield pool


def bbox(left: int, top: int, right: int, bottom: int) -> dict[str, Any]:
    """Return an area by pixels of a scene at `NORTH_UP`."""
    return {"bbox": [*(NORTH_UP @ (left, bottom)), *(NORTH_UP @ (right, top))], "crs": UTM}


def job_media(
    request: dict[str, Any], folder: Path, server: Server | None = None, *, limit: int = 2**31, shared: bool = False,
    hashed: bool = False,
) -> JobMedia:  # fmt: skip
    """Return a job's media as the pipeline fetches them; `shared` if other workers may compute the job."""
    hosts = () if server is None else (f"127.0.0.1:{server.port}",)
    settings = Settings(allowed_hosts=hosts)
    store = open_store((folder / "objects").as_uri(), settings)
    get = partial(
        fetch_for_job, store=store, tenant="acme", settings=settings, guard=GuardedClient(settings), limit_bytes=limit
    )
    media = JobMedia(get, folder / "room" / "job" / "media", lambda _: None, hashed=hashed)
    undecided = media_to_share(SCHEMA, request) if shared else frozenset()
    fetch_named(media, SCHEMA, request, undecided=undecided)
    return media


def run(pool: IOPool, media: JobMedia, request: dict[str, Any], folder: Path, model: Model) -> Processed:
    """Run a job with a network that is a function."""
    folder = folder / "room" / "job" / "artifacts"
    work = Work(model, request, dict(media.files), folder, room=folder.parent.parent, requests=media)
    with pool.open(work, check=lambda: None, say=lambda _: None) as session:
        return session.finish(answers(session.prepared.prompts))


def answers(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output({"probability": by_value(as_floats(prompt).data["pixels"])}) for prompt in prompts)


def classes(processed: Processed) -> npt.NDArray[Any]:
    return read(processed.files["classes.tif"].path)[0]


def write_gigabyte(path: Path) -> npt.NDArray[np.uint16]:
    """Write a file of 1.1 GB of which most is a hole; return the pixels of rows and columns 12,000 to 14,000."""
    numbers = np.random.default_rng(1).integers(1, 5000, (2000, 2000), np.uint16)
    profile = {"driver": "GTiff", "dtype": "uint16", "count": 1, "crs": UTM, "transform": NORTH_UP, "BIGTIFF": "YES"}
    tiles = {"tiled": True, "blockxsize": 512, "blockysize": 512}
    with rasterio.open(path, "w", height=23_168, width=23_168, **profile, **tiles) as file:
        file.write(numbers[None], window=rasterio.windows.Window(12_000, 12_000, 2000, 2000))
    assert path.stat().st_size > 10**9
    return numbers


@pytest.mark.breadth
def test_512_px_of_a_file_of_1_gb_take_less_than_5_mb(pool: IOPool, tmp_path: Path, record_property: Any) -> None:
    numbers = write_gigabyte(tmp_path / "big.tif")
    files = ServedFiles(tmp_path)
    with files.serve() as server:
        request = {
            "scene": f"http://127.0.0.1:{server.port}/big.tif",
            "area": bbox(12_700, 12_800, 13_212, 13_312),
            "outputs": ["classes", "stats"],
        }
        media = job_media(request, tmp_path, server, limit=10 * MIB)
        done = run(pool, media, request, tmp_path, make_model(tile_px=256, halo_px=16, stride_px=16))
    np.testing.assert_array_equal(classes(done), numbers[800:1312, 700:1212] % 5)
    assert files.sent_bytes < 5_000_000
    spent = sum(file.path.stat().st_blocks * 512 for file in media.files.values())
    assert spent < 6_000_000  # the local file is sparse
    record_property("figures", f"512 px of a file of 1.1 GB: {files.sent_bytes:,} bytes, {len(files.paths)} requests")


def test_an_upload_is_read_by_range_too(pool: IOPool, tmp_path: Path) -> None:
    write_scene(path := tmp_path / "scene.tif", pattern(1500, 1600), tiled=True, blockxsize=256, blockysize=256)
    store = open_store((tmp_path / "objects").as_uri(), Settings())
    info = store.put_file(upload_key("acme", "1", "scene.tif"), path, content_type="image/tiff")
    request = {"scene": "media://1/scene.tif", "area": bbox(300, 300, 400, 380), "outputs": ["classes", "stats"]}
    media = job_media(request, tmp_path)
    done = run(pool, media, request, tmp_path, make_model())
    np.testing.assert_array_equal(classes(done), pattern(1500, 1600)[0, 300:380, 300:400] % 5)
    part = media.partial["media://1/scene.tif"]
    assert part.fetched_bytes < 400_000 < info.size_bytes
    assert done.result.data is not None
    assert done.result.data["scene"]["etag"] == info.etag
    assert [each.to_json() for each in media.inputs({"media://1/scene.tif": "/scene"})] == [
        {"place": "/scene", "reference": "media://1/scene.tif", "size_bytes": info.size_bytes, "etag": info.etag}
    ]


@pytest.mark.breadth(but=("many",))
@pytest.mark.parametrize("side", [1700, 128], ids=["one tile", "many"])
def test_a_scene_that_others_may_compute_is_fetched_when_this_attempt_computes_it(
    side: int, pool: IOPool, tmp_path: Path
) -> None:
    write_scene(path := tmp_path / "scene.tif", pattern(1500, 1600), tiled=True, blockxsize=256, blockysize=256)
    store = open_store((tmp_path / "objects").as_uri(), Settings())
    info = store.put_file(upload_key("acme", "1", "scene.tif"), path, content_type="image/tiff")
    request = {"scene": "media://1/scene.tif", "outputs": ["classes", "stats"]}
    media = job_media(request, tmp_path, shared=True, hashed=True)
    part = media.partial["media://1/scene.tif"]
    work = Work(make_model(tile_px=side), request, dict(media.files), tmp_path / "room" / "job" / "made",
        room=tmp_path / "room", requests=media)  # fmt: skip
    with pool.open(work, check=lambda: None, say=lambda _: None) as session:
        assert side > 1000 or part.fetched_bytes < 200_000 < info.size_bytes
        assert media.hashes == {}
        media.complete()
        done = session.finish(answers(session.prepared.prompts))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert media.hashes == {"media://1/scene.tif": digest}
    assert part.fetched_bytes == info.size_bytes
    np.testing.assert_array_equal(classes(done), pattern(1500, 1600)[0] % 5)


def test_a_scene_beyond_the_limit_is_refused_before_it_is_known_who_computes_it(tmp_path: Path) -> None:
    write_scene(path := tmp_path / "scene.tif", pattern(1500, 1600), tiled=True, blockxsize=256, blockysize=256)
    store = open_store((tmp_path / "objects").as_uri(), Settings())
    info = store.put_file(upload_key("acme", "1", "scene.tif"), path, content_type="image/tiff")
    with pytest.raises(MediaTooLarge, match="larger than the limit"):
        job_media({"scene": "media://1/scene.tif"}, tmp_path, shared=True, limit=info.size_bytes - 1)


def test_scenes_on_the_web_are_fetched_whole_although_others_may_compute_them() -> None:
    assert media_to_share(SCHEMA, {"scene": "media://1/scene.tif"}) == {"media://1/scene.tif"}
    assert media_to_share(SCHEMA, {"scene": "https://example.com/scene.tif"}) == frozenset()


def test_a_file_that_changes_fails_the_job(pool: IOPool, tmp_path: Path) -> None:
    write_scene(tmp_path / "scene.tif", pattern(1500, 1600))
    for careless in (False, True):
        files = ServedFiles(tmp_path, careless=careless)
        with files.serve() as server:
            request = {"scene": f"http://127.0.0.1:{server.port}/scene.tif", "area": bbox(300, 900, 400, 980)}
            media = job_media(request, tmp_path, server)
            files.etag = '"2"'
            with pytest.raises(MediaChanged, match="has changed since"):
                run(pool, media, request, tmp_path, make_model())


@pytest.mark.parametrize("without_", ["ranges", "etag", "strong etag"])
def test_a_server_without_ranges_or_etags_sends_the_whole_file(without_: str, pool: IOPool, tmp_path: Path) -> None:
    write_scene(tmp_path / "scene.tif", pattern(1500, 1600))
    etag = {"ranges": '"1"', "etag": None, "strong etag": 'W/"1"'}[without_]
    files = ServedFiles(tmp_path, etag=etag, whole=without_ == "ranges")
    with files.serve() as server:
        request = {
            "scene": f"http://127.0.0.1:{server.port}/scene.tif",
            "area": bbox(300, 900, 400, 980),
            "outputs": ["classes", "stats"],
        }
        media = job_media(request, tmp_path, server)
        assert not media.partial
        done = run(pool, media, request, tmp_path, make_model())
        np.testing.assert_array_equal(classes(done), pattern(1500, 1600)[0, 900:980, 300:400] % 5)
        with pytest.raises(MediaTooLarge):
            job_media(request, tmp_path, server, limit=MIB)


def test_small_files_and_other_formats_are_fetched_whole(tmp_path: Path) -> None:
    write_scene(tmp_path / "small.tif", pattern(300, 300))
    (tmp_path / "large.jp2").write_bytes(b"\0\0\0\x0cjP  \r\n\x87\n" + b"x" * 2 * MIB)
    with ServedFiles(tmp_path).serve() as server:
        for name in ("small.tif", "large.jp2"):
            request = {"scene": f"http://127.0.0.1:{server.port}/{name}", "area": bbox(0, 0, 9, 9)}
            media = job_media(request, tmp_path, server)
            assert not media.partial
            [file] = media.files.values()
            assert file.path.read_bytes() == (tmp_path / name).read_bytes()


def test_an_area_that_needs_too_many_bytes_is_refused(pool: IOPool, tmp_path: Path) -> None:
    write_scene(tmp_path / "scene.tif", pattern(1500, 1600))
    with ServedFiles(tmp_path).serve() as server:
        request = {"scene": f"http://127.0.0.1:{server.port}/scene.tif", "area": bbox(0, 0, 1600, 1500)}
        with pytest.raises(MediaTooLarge, match=r"The area needs 2,4.* bytes of the file; at most 1,048,576"):
            run(pool, job_media(request, tmp_path, server, limit=MIB), request, tmp_path, make_model())


def test_ranges_are_joined_and_cut() -> None:
    assert list(joined([(5, 9), (0, 3), (2, 4), (9, 9), (20, 21)], 1)) == [(0, 9), (20, 21)]
    assert list(without([(0, 10), (20, 30)], [(2, 3), (8, 22), (29, 40)])) == [(0, 2), (3, 8), (22, 29)]


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@given(wanted=RANGES, there=RANGES)
def test_what_is_missing_is_what_is_not_there(wanted: list[tuple[int, int]], there: list[tuple[int, int]]) -> None:
    have = list(joined(there))
    missing = list(without(joined(wanted), have))
    numbers = [{n for start, end in ranges for n in range(start, end)} for ranges in (wanted, there, missing)]
    assert numbers[2] == numbers[0] - numbers[1]
    assert missing == sorted(missing)


BLUE_RED = make_model(
    bands=(
        {"name": "blue", "synonyms": ["B02"], "mean": 0.0, "std": 1.0},
        {"name": "nir", "synonyms": ["B8A", "B08"], "mean": 0.0, "std": 1.0},
    ),
    default_radiometry=[],
)


def bands_of_one_scene(folder: Path) -> dict[str, Any]:
    """Write two band files in a folder below, and return assets with relative addresses."""
    (folder / "bands").mkdir(parents=True)
    for name, offset in (("B02.tif", 0), ("B08.tif", 3)):
        write_scene(folder / "bands" / name, pattern(90, 100) + np.uint8(offset))
    more = {"type": "image/tiff", "raster:bands": [{"scale": 2, "offset": 10}]}
    return {
        "visual": {"href": "bands/TCI.tif", "roles": ["visual"], "eo:bands": [{"name": "red", "common_name": "blue"}]},
        "blue": {"href": "./bands/B02.tif", "eo:bands": [{"name": "B02"}], **more},
        "nir": {"href": "bands/B08.tif", "eo:bands": [{"name": "B08", "common_name": "nir"}], **more},
    }


def expected_classes() -> npt.NDArray[Any]:
    return (2 * pattern(90, 100)[0].astype(int) + 10) % 5


@pytest.mark.parametrize("way", ["url", "inline", "area"])
def test_a_stac_item_names_the_scene(way: str, pool: IOPool, tmp_path: Path) -> None:
    assets = bands_of_one_scene(tmp_path / "data")
    files = ServedFiles(tmp_path / "data")
    (tmp_path / "data" / "item.json").write_text(json.dumps(item(assets)))
    flat = {path.name: path for path in (tmp_path / "data" / "bands").iterdir()}
    with files.serve() as server:
        address = f"http://127.0.0.1:{server.port}/item.json"
        inline = item(assets) | {"links": [{"rel": "self", "href": address}]}
        request: dict[str, Any] = {
            "stac": inline if way == "inline" else address,
            "outputs": ["classes", "stats", "item"],
        }
        request |= {"area": bbox(20, 30, 90, 80)} if way == "area" else {}
        media = job_media(request, tmp_path, server)
        done = run(pool, media, request, tmp_path, BLUE_RED)
    whole = expected_classes()
    np.testing.assert_array_equal(classes(done), whole[30:80, 20:90] if way == "area" else whole)
    data = done.result.data
    assert data is not None
    assert [band["name"] for band in data["bands"]] == ["blue", "nir"]
    assert data["radiometry"]["source"] == "stac"
    assert (data["radiometry"]["scale"], data["radiometry"]["offset"]) == (2, 10)
    assert json.loads(done.files["item.json"].path.read_text())["properties"]["datetime"] == "2024-05-01T00:00:00Z"
    assert sorted({name for name in files.paths if name in flat}) == ["B02.tif", "B08.tif"]


def test_assets_that_are_missing_or_have_no_address_are_explained(pool: IOPool, tmp_path: Path) -> None:
    assets = bands_of_one_scene(tmp_path / "data")
    with ServedFiles(tmp_path / "data").serve() as server:
        lacking: dict[str, Any] = {"stac": item({"blue": assets["blue"], "visual": assets["visual"]})}
        with pytest.raises(MissingBands, match=r"No asset of the STAC item has the band nir \(or B8A, B08\); .*blue"):
            run(pool, job_media(lacking, tmp_path, server), lacking, tmp_path, BLUE_RED)
        relative: dict[str, Any] = {"stac": item(assets)}
        with pytest.raises(InvalidInput, match=r"The asset blue of the STAC item has the relative address"):
            run(pool, job_media(relative, tmp_path, server), relative, tmp_path, BLUE_RED)
        here = {"rel": "self", "href": f"http://127.0.0.1:{server.port}/elsewhere/item.json"}
        gone: dict[str, Any] = {"stac": item(assets) | {"links": [here]}}
        with pytest.raises(MediaNotFound, match=r"elsewhere/bands/B02.tif: the server responded with status 404"):
            run(pool, job_media(gone, tmp_path, server), gone, tmp_path, BLUE_RED)


def test_a_date_whose_file_cannot_be_had_is_named_and_the_others_go_on(pool: IOPool, tmp_path: Path) -> None:
    assets = bands_of_one_scene(tmp_path / "data")
    with ServedFiles(tmp_path / "data").serve() as server:
        here, gone = (
            {
                "stac": item(assets)
                | {"links": [{"rel": "self", "href": f"http://127.0.0.1:{server.port}/{at}item.json"}]}
            }
            for at in ("", "elsewhere/")
        )
        request = {"dates": [gone, here], "series": {"of": ["class 1"]}, "outputs": ["classes", "stats"]}
        done = run(pool, job_media(request, tmp_path, server), request, tmp_path, BLUE_RED)
        assert done.result.data is not None
        (failed,) = done.result.data["series"]["failed"]
        assert (failed["listed"], failed["date"]) == (1, None)
        assert "elsewhere/bands/B02.tif: the server responded with status 404" in failed["reason"]
        (map_of_it,) = [file.path for name, file in done.files.items() if name.endswith("-classes.tif")]
        np.testing.assert_array_equal(read(map_of_it)[0], expected_classes())
        nothing: dict[str, Any] = {**request, "dates": [gone, gone]}
        with pytest.raises(InvalidInput, match=r"No date of the series can be used. Date 1: .*status 404.* Date 2: "):
            run(pool, job_media(nothing, tmp_path / "no", server), nothing, tmp_path / "no", BLUE_RED)


@pytest.mark.parametrize("field", ["scene", "stac"])
def test_a_date_whose_scene_cannot_be_had_is_named_too(field: str, pool: IOPool, tmp_path: Path) -> None:
    assets = bands_of_one_scene(tmp_path / "data")
    with ServedFiles(tmp_path / "data").serve() as server:
        address = f"http://127.0.0.1:{server.port}/"
        here = {"stac": item(assets) | {"links": [{"rel": "self", "href": f"{address}item.json"}]}}
        gone = {field: f"{address}none.{'tif' if field == 'scene' else 'json'}"}
        request = {"dates": [here, gone], "series": {"of": ["class 1"]}, "outputs": ["classes", "stats"]}
        done = run(pool, job_media(request, tmp_path, server), request, tmp_path, BLUE_RED)
        assert done.result.data is not None
        (failed,) = done.result.data["series"]["failed"]
        assert failed["listed"] == 2
        assert "none." in failed["reason"]
        assert "status 404" in failed["reason"]
        alone: dict[str, Any] = {"dates": [here, gone], "outputs": ["classes", "stats"]}
        with pytest.raises(MediaNotFound, match="status 404") as caught:
            job_media(alone, tmp_path / "alone", server)  # both dates of one input: none may be missing
        assert [issue.pointer for issue in caught.value.errors] == [f"/input/dates/1/{field}"]


def test_only_the_assets_of_an_item_are_fetched_for_a_processor(tmp_path: Path) -> None:
    with ServedFiles(tmp_path).serve() as server:
        at = f"http://127.0.0.1:{server.port}"
        media = job_media({"stac": item({"a": {"href": f"{at}/a.tif"}})}, tmp_path, server)
        with pytest.raises(ProcessorFailed, match="no document of the job names"):
            media.fetch(f"{at}/b.tif", by_range=False)
        with pytest.raises(MediaNotFound, match=r"a.tif"):
            media.fetch(f"{at}/a.tif", by_range=False)


def halves(folder: Path) -> dict[str, Any]:
    """Write the halves of a scene, and return a collection of their items with relative addresses."""
    folder.mkdir()
    items = []
    for at, columns in enumerate((slice(0, 50), slice(50, 100))):
        place = NORTH_UP @ rasterio.Affine.translation(columns.start, 0)
        write_scene(folder / f"half-{at}.tif", pattern(90, 100)[:, :, columns], transform=place)
        items.append(item({"B02": {"href": f"half-{at}.tif", "raster:bands": [{"scale": 1}]}}) | {"id": f"half {at}"})
    return {"type": "FeatureCollection", "features": items}


BLUE = make_model(bands=[{"name": "blue", "synonyms": ["B02"], "mean": 0.0, "std": 1.0}])


@pytest.mark.parametrize("way", ["search", "inline"])
def test_the_answer_of_a_search_is_a_mosaic(way: str, pool: IOPool, tmp_path: Path) -> None:
    found = halves(tmp_path / "data")
    (tmp_path / "data" / "search").write_text(json.dumps(found))
    with ServedFiles(tmp_path / "data").serve() as server:
        address = f"http://127.0.0.1:{server.port}/search?bbox=1,2,3,4&limit=2"
        inline = found | {"links": [{"rel": "self", "href": address}]}
        request: dict[str, Any] = {"stac": inline if way == "inline" else address, "outputs": ["classes", "stats"]}
        done = run(pool, job_media(request, tmp_path, server), request, tmp_path, BLUE)
    np.testing.assert_array_equal(classes(done), pattern(90, 100)[0] % 5)
    assert done.result.data is not None
    assert [scene["columns"] for scene in done.result.data["mosaics"][0]["scenes"]] == [[0, 50], [50, 100]]


def test_the_files_of_a_collection_keep_to_the_limits_and_the_guard(tmp_path: Path) -> None:
    found = halves(tmp_path / "data")
    away = "http://169.254.169.254/half-1.tif"
    found["features"][1]["assets"]["B02"]["href"] = away
    with ServedFiles(tmp_path / "data").serve() as server:
        (tmp_path / "data" / "search").write_text(json.dumps(found))
        at = f"http://127.0.0.1:{server.port}"
        media = job_media({"stac": f"{at}/search?a=b"}, tmp_path, server, limit=4000)
        with pytest.raises(MediaTooLarge, match=r"half-0.tif: .*4,000"):
            media.fetch(f"{at}/half-0.tif", by_range=False)
        with pytest.raises(MediaRefused):
            media.fetch(away, by_range=False)
        with pytest.raises(ProcessorFailed, match="no document of the job names"):
            media.fetch(f"{at}/half-1.tif", by_range=False)


def test_an_asset_on_a_host_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    media = job_media({"stac": item({"a": {"href": "http://169.254.169.254/a.tif"}})}, tmp_path)
    with pytest.raises(MediaRefused):
        media.fetch("http://169.254.169.254/a.tif", by_range=False)


def test_geoparquet_is_written_in_the_sandbox(pool: IOPool, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write_scene(tmp_path / "scene.tif", pattern(30, 40))
    store = open_store((tmp_path / "objects").as_uri(), Settings())
    store.put_file(upload_key("acme", "1", "scene.tif"), path, content_type="image/tiff")
    request: dict[str, Any] = {
        "scene": "media://1/scene.tif",
        "outputs": ["polygons"],
        "polygons": {"geoparquet": True},
    }
    done = run(pool, job_media(request, tmp_path), request, tmp_path, make_model())
    assert parquet.read_table(done.files["polygons.parquet"].path).num_rows > 100
