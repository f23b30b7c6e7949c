"""The how-to pages on jobs: every command and program in them is run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from shutil import copyfile

import pytest
import shapely
from PIL import Image

from penstock.client import Client, PenstockAPIError
from penstock.config import Settings
from penstock.object_events import read_message
from penstock.processors.geo.read.gdal import pyogrio, rasterio
from penstock.storage.sqs import open_queue
from tests.support.aws_emulators import emulating
from tests.support.doc_pages import Block, Shell, blocks, digest, end_receiver
from tests.support.hub import minilm, needs_stories
from tests.support.polling import wait_for
from tests.support.postgis import postgis
from tests.support.stack import free_port, listens

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(900)]


@needs_stories
def test_run_offline(shell: Shell) -> None:
    (shell.folder / "penstock.toml").write_text('models = ["models.toml"]')
    records = [block.code for block in blocks("serve-a-model.md") if block.title == "models.toml"]
    (shell.folder / "models.toml").write_text(records[0])
    for block in blocks("run-offline.md"):
        shell.take(block)

    assert {path.name for path in (shell.folder / "result").iterdir()} >= {"classes.tif", "stats.json"}
    assert '"artifacts": [' in (shell.folder / "result.json").read_text()


def test_use_the_http_api(shell: Shell) -> None:
    for block in blocks("use-the-http-api.md"):
        shell.take(block)

    assert (shell.folder / "classes.tif").stat().st_size > 0
    job = json.loads((shell.folder / "job.json").read_text())
    assert job["traceparent"].startswith("00-4bf92f35")
    named = {"queue_ms", "cold_start_ms", "fetch_ms", "preprocess_ms", "inference_ms", "postprocess_ms", "upload_ms"}
    assert named | {"input_bytes", "batches", "batch_size"} <= set(job["metrics"])


def test_map_water(shell: Shell) -> None:
    for block in blocks("map-water.md"):
        shell.take(block)

    stats = json.loads((shell.folder / "water" / "stats.json").read_text())
    bands = json.loads((shell.folder / "from-bands" / "stats.json").read_text())
    # Short-wave bands of half the resolution make another map, but not one of another place.
    water, from_bands = (each["classes"][1]["percent"] for each in (stats, bands))
    assert 30 < water < 40
    assert abs(water - from_bands) < 2
    served = {folder: digest(shell.folder / folder / "classes.tif") for folder in ("water", "served")}
    assert served["water"] == served["served"]
    assert digest(shell.folder / "served-bands" / "classes.tif") == digest(shell.folder / "from-bands" / "classes.tif")


def test_reproduce_a_result(shell: Shell) -> None:
    for block in blocks("reproduce-a-result.md"):
        shell.take(block)

    job, found = (json.loads((shell.folder / name).read_text()) for name in ("job.json", "reproduced.json"))
    assert (found["job"], found["equal"], found["differences"]) == (job["id"], True, [])


SCENES = Path(__file__).parents[3] / "shared" / "data" / "geo"


@pytest.mark.skipif(not SCENES.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
def test_map_a_flood(shell: Shell) -> None:
    for name, scene in (("before", "l8_betsiboka_20170118_6b.tif"), ("after", "l8_betsiboka_20200127_6b.tif")):
        copyfile(SCENES / scene, shell.folder / f"{name}.tif")
    for block in blocks("map-a-flood.md"):
        if block.language != "json" or block.title:
            shell.take(block)

    stats = json.loads((shell.folder / "flood" / "stats.json").read_text())
    found = {row["name"]: row["area_m2"] / 1e6 for row in stats["change"]["classes"]}
    assert 50 < found["water gained"] < 110
    assert found["water gained"] > 10 * found["water lost"]
    assert (shell.folder / "flooded.fgb").stat().st_size > 10_000
    banks = json.loads((shell.folder / "districts" / "stats.json").read_text())["zones"]
    assert [(zone["name"], zone["whole"]) for zone in banks] == [("west bank", True), ("east bank", True)]
    gained = sum(zone["change"]["classes"][2]["area_m2"] for zone in banks) / 1e6
    assert 0.5 * found["water gained"] < gained < found["water gained"]
    assert len((shell.folder / "districts" / "zones.csv").read_text().splitlines()) == 3
    polygon = json.loads((shell.folder / "polygon" / "stats.json").read_text())
    assert polygon["valid_pixels"] > 10_000
    assert polygon["nodata_pixels"] > polygon["pixels"] / 4


@pytest.mark.skipif(not SCENES.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
def test_map_a_season(shell: Shell) -> None:
    dry, flooded = (SCENES / f"l8_betsiboka_{day}_6b.tif" for day in ("20170118", "20200127"))
    for name, scene in (("1", dry), ("2", flooded), ("3", dry)):
        copyfile(scene, shell.folder / f"{name}.tif")
    (shell.folder / "4.tif").write_text("a page of an error")
    for block in blocks("map-a-season.md"):
        if block.language != "json" or block.title:
            shell.take(block)

    stats = json.loads((shell.folder / "season" / "stats.json").read_text())
    assert [date["listed"] for date in stats["series"]["failed"]] == [4]
    files = {path.name for path in (shell.folder / "season").iterdir()}
    assert files >= {"01-2020-01-11-classes.tif", "03-2020-02-12-classes.tif", "first-seen.tif", "series.csv"}
    water = [sum(row["area_m2"] for row in date["classes"][1:3]) / 1e6 for date in stats["dates"]]
    assert 40 < water[1] - water[0] < 60
    assert water[2] == water[0]
    assert stats["series"]["extent"]["classes"][1]["area_m2"] / 1e6 >= water[1]


@pytest.mark.skipif(not SCENES.is_dir(), reason="needs the shared data beside the checkout, ../shared/data")
def test_subscribe_to_an_area(shell: Shell) -> None:
    for name, scene in (("before", "l8_betsiboka_20170118_6b.tif"), ("after", "l8_betsiboka_20200127_6b.tif")):
        copyfile(SCENES / scene, shell.folder / f"{name}.tif")
    port = str(free_port())
    try:
        for block in blocks("subscribe-to-an-area.md"):
            if block.language != "toml" or block.title:
                shell.take(replace(block, code=block.code.replace("8097", port)))
    finally:
        end_receiver(shell.folder, "catalogue.pid")

    with Client(shell.env["PENSTOCK_URL"], patience_s=5) as client:
        found = client.subscription("bay")
        jobs = client.jobs().jobs
    assert [(each.item, each.changed) for each in found.results] == [("after", True), ("before", False)]
    gained = {part.name: part.m2["gained(water, snow or ice)"] / 1e6 for part in found.results[0].polygons}
    assert 50 < sum(gained.values()) < 110  # as in `test_map_a_flood`
    assert all(area > 2 for area in gained.values())
    assert sorted(job.metadata["item"] for job in jobs) == ["after", "before"]


def test_keys(shell: Shell) -> None:
    for block in blocks("keys.md"):
        shell.take(block)

    assert (shell.folder / "result" / "classes.tif").is_file()
    old, new = ((shell.folder / name).read_text() for name in ("acme.key", "new.key"))
    with Client(shell.env["PENSTOCK_URL"], api_key=new, patience_s=5) as client:
        assert [job.succeeded for job in client.jobs().jobs] == [True, True]
    said = (shell.folder / "up.log").read_text()
    assert "API keys are required" in said
    assert "there is no key yet" in said
    wait_for(lambda: _is_refused(shell.env["PENSTOCK_URL"], old), "a revoked key is still taken", timeout_s=10)


def test_measure_usage(shell: Shell) -> None:
    for block in blocks("measure-usage.md"):
        if block.language != "toml":
            shell.take(block)

    for name in ("usage.json", "report.json"):
        total = json.loads((shell.folder / name).read_text())["total"]
        assert total["jobs"]["succeeded"] == 2
        assert total["device_seconds"] > 0
        assert total["pixels"] >= 2 * 256 * 256
        assert total["bytes_out"] > 0
    day, model, jobs, *_ = (shell.folder / "rows.txt").read_text().split()
    assert (model, jobs) == ("csmask", "2")
    rows = json.loads((shell.folder / "default" / "manifest.json").read_text())["files"]
    assert {row["path"] for row in rows} >= {"redis.jsonl", "keys.json"}
    assert all(digest(shell.folder / "default" / row["path"]) == row["sha256"] for row in rows)
    erased = json.loads((shell.folder / "erased.json").read_text())
    assert (erased["jobs"], erased["left"]) == (2, [])
    with Client(shell.env["PENSTOCK_URL"]) as client:
        assert (client.usage(first=day).rows, client.jobs().jobs) == ((), ())


def test_back_up_and_restore(shell: Shell) -> None:
    shell.env["PORT_OF_RESTORED"] = str(free_port())
    for block in blocks("back-up-and-restore.md"):
        shell.take(block)

    job = json.loads((shell.folder / "job.json").read_text())
    found = json.loads((shell.folder / "found.json").read_text())
    assert found["status"] == "succeeded"
    with_addresses = {"artifacts", "links"}
    assert {name for name, value in found.items() if value != job[name]} <= with_addresses
    assert [each["sha256"] for each in found["artifacts"]] == [each["sha256"] for each in job["artifacts"]]
    assert "jobs.recovered" in (shell.folder / "restored" / "logs" / "keeper.log").read_text()


def _is_refused(url: str, key: str) -> bool:
    with Client(url, api_key=key, patience_s=0) as client:
        try:
            client.jobs()
        except PenstockAPIError as error:
            return error.code == "unauthorized"
    return False


def test_python_client(shell: Shell) -> None:
    for block in blocks("python-client.md"):
        shell.take(block)

    assert {path.name for path in (shell.folder / "result").iterdir()} >= {"classes.tif", "job.json"}
    assert len(list((shell.folder / "results").iterdir())) == 2
    assert list((shell.folder / "state" / "uploads").iterdir()) == []  # what ended is not noted any more


def test_receive_webhooks(shell: Shell) -> None:
    port = str(free_port())
    shell.env["HOOK_PORT"] = port
    try:
        for block in blocks("receive-webhooks.md"):
            # The page's receiver is started in the background: it listens before the service is up.
            shell.take(replace(block, code=block.code.replace("127.0.0.1:8099", f"127.0.0.1:{port}")))
    finally:
        end_receiver(shell.folder)

    job = json.loads((shell.folder / "job.json").read_text())["id"]
    events = (shell.folder / "events.txt").read_text().splitlines()
    assert f"job.succeeded {job}" in events
    assert sum(event.startswith("webhook.test ") for event in events) == 3
    assert len(events) == 4


def test_drop_folder(shell: Shell) -> None:
    scenes = shell.folder / "scenes"
    for block in blocks("drop-folder.md"):
        shell.take(replace(block, code=block.code.replace("/srv/scenes", str(scenes))))

    made = {path.name for path in (scenes / "out" / "a.tif").iterdir()}
    assert made == {"classes.tif", "classes.tif.aux.xml", "classes.qml", "stats.json"}
    assert {path.name for path in (scenes / "out" / "b.tif").iterdir()} == {"stats.json"}
    assert (shell.folder / "events.key").read_text().startswith("penstock_")


def test_drop_folder_on_aws(tmp_path: Path) -> None:
    with emulating("ministack", tmp_path) as aws:
        bucket, (_, dead), (url, arn) = aws.bucket(), aws.queue(), aws.queue()
        names = {
            "arn:aws:sqs:eu-central-1:111122223333:penstock-scenes-dead": dead,
            "arn:aws:sqs:eu-central-1:111122223333:penstock-scenes": arn,
            "arn:aws:s3:::scenes": f"arn:aws:s3:::{bucket}",
        }
        files = {block.title: _with_names(block.code, names) for block in blocks("drop-folder.md") if block.title}
        aws.client("sqs").set_queue_attributes(QueueUrl=url, Attributes=json.loads(files["queue.json"]))
        notification = json.loads(files["notification.json"])
        aws.client("s3").put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=notification)
        for key in ("in/a.tif", "elsewhere/a.tif"):
            aws.client("s3").put_object(Bucket=bucket, Key=key, Body=b"a scene")
        received = open_queue(url, Settings(s3=aws.s3)).receive()
        said = [event.key for message in received for event in read_message(message.body).events]
        assert said == ["in/a.tif"]
        assert json.loads(files["pattern.json"])["detail-type"] == ["Object Created"]


def _with_names(text: str, names: dict[str, str]) -> str:
    for name, real in names.items():
        text = text.replace(name, real)
    return text


def test_many_requests(shell: Shell) -> None:
    for block in blocks("many-requests.md"):
        shell.take(block)

    result = shell.folder / "result"
    results = [json.loads(row) for row in (result / "results.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in results] == ["scene-1.tif", "scene-2.tif", "scene-3.tif"]
    assert {file["name"] for file in results[0]["artifacts"]} >= {"classes.tif", "stats.json"}
    [mistake] = [json.loads(row) for row in (result / "errors.jsonl").read_text().splitlines()]
    assert (mistake["custom_id"], mistake["status"]) == ("mistake", "invalid")


def test_know_before_you_run(shell: Shell) -> None:
    for block in blocks("know-before-you-run.md"):
        shell.take(block)

    found = json.loads((shell.folder / "estimate.json").read_text())
    assert found["media_bytes"] == (shell.folder / "scene.tif").stat().st_size
    assert (
        0 < found["device_seconds"]["low"] < found["device_seconds"]["high"] <= 4.001 * found["device_seconds"]["low"]
    )
    with Client(shell.env["PENSTOCK_URL"]) as client:
        assert len(client.jobs().jobs) == 3


def test_chain_jobs(shell: Shell) -> None:
    for block in blocks("chain-jobs.md"):
        shell.take(block)

    with Client(shell.env["PENSTOCK_URL"]) as client:
        jobs = client.jobs().jobs
        heads = {job.id: client.job(job.id) for job in jobs if job.model == "csmask"}
        assert all(job.succeeded for job in jobs)
        assert sorted(len(job.followers or ()) for job in heads.values()) == [2, 2]
        counts = [job for job in jobs if job.model == "count"]
        assert [sum(job.data.values()) for job in counts if job.data] == [128 * 128] * 4
        assert all(set(job.after) & set(heads) for job in counts)


@needs_stories
def test_openai_client(shell: Shell) -> None:
    minilm()
    for block in blocks("openai-client.md"):
        shell.take(block)

    listed = json.loads((shell.folder / "models.json").read_text())["data"]
    assert [model["id"] for model in listed] == ["minilm", "stories"]
    answers = [json.loads(row) for row in (shell.folder / "answers.jsonl").read_text().splitlines()]
    assert [row["custom_id"] for row in answers] == ["Lily", "Tom", "Max"]
    assert all(row["response"]["body"]["usage"]["completion_tokens"] == 20 for row in answers)


@needs_stories
def test_runpod_client(shell: Shell) -> None:
    (shell.folder / "penstock.toml").write_text('models = ["models.toml"]')
    records = next(block.code for block in blocks("serve-a-model.md") if block.title == "models.toml")
    (shell.folder / "models.toml").write_text(records[records.index("[models.stories]") :])
    shell.take(Block("bash", "", "penstock up\n"))
    for block in blocks("runpod-client.md"):
        shell.take(block)

    with Client(shell.env["PENSTOCK_URL"]) as client:
        (job,) = client.jobs().jobs
    assert (job.model, job.succeeded, job.input["prompt"]) == ("stories", True, "Once upon a time")


@needs_stories
def test_agents(shell: Shell) -> None:
    pytest.importorskip("mcp", reason="needs the Model Context Protocol's SDK: pip install '.[mcp]'")
    (shell.folder / "penstock.toml").write_text('models = ["models.toml"]')
    records = next(block.code for block in blocks("serve-a-model.md") if block.title == "models.toml")
    (shell.folder / "models.toml").write_text(records[records.index("[models.stories]") :])
    shell.take(Block("bash", "", "penstock up\n"))
    every, port = blocks("agents.md"), free_port()
    [settings] = [json.loads(block.code) for block in every if block.language == "json"]
    options = [word for word in settings["mcpServers"]["penstock"]["args"] if word.startswith("-")]
    shell.take(Block("bash", "", f"penstock mcp --help | grep -F -e {' -e '.join(options)}\n"))
    shell.take(Block("bash", "", f"penstock mcp --http 127.0.0.1:{port} > mcp.log 2>&1 & echo $! > mcp.pid\n"))
    try:
        wait_for(lambda: listens(port), "the server for agents did not listen")
        for block in every:
            if block.language == "python":
                shell.take(replace(block, code=block.code.replace("8090", str(port))))
    finally:
        end_receiver(shell.folder, "mcp.pid")
    with Client(shell.env["PENSTOCK_URL"]) as client:
        (job,) = client.jobs().jobs
    assert (job.model, job.succeeded, job.input["prompt"]) == ("stories", True, "Once upon a time")


@pytest.fixture
def held() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_maps_and_gis(shell: Shell, held: ExitStack) -> None:
    pytest.importorskip("rio_tiler", reason="needs rio-tiler: pip install '.[tiles]'")
    port, second, database = free_port(), free_port(), held.enter_context(postgis())
    shell.env["DATABASE"] = database.database
    try:
        for found in blocks("maps-and-gis.md"):
            block = replace(found, code=found.code.replace("8085", str(port)).replace("8086", str(second)))
            if block.language == "sh":
                name = block.code.split()[1]
                at = {"tiles": port, "features": second}[name]
                shell.take(Block("bash", "", f"{block.code.rstrip()} > {name}.log 2>&1 & echo $! > {name}.pid\n"))
                wait_for(lambda at=at: listens(at), f"{name} did not listen", timeout_s=60)
            else:
                shell.take(block)
    finally:
        for name in ("tiles", "features"):
            end_receiver(shell.folder, f"{name}.pid")

    stats = json.loads((shell.folder / "result" / "stats.json").read_text())
    with Image.open(shell.folder / "map.png") as image:
        shown = {colour[:3] for _, colour in image.convert("RGBA").getcolors() if colour[3]}
    legend = {tuple(bytes.fromhex(row["colour"][1:])) for row in stats["classes"] if row["pixels"]}
    assert len(shown) > 2
    assert shown <= legend
    features = json.loads((shell.folder / "water.geojson").read_text())
    assert 0 < features["numberReturned"] == len(features["features"]) <= 10
    assert pyogrio.read_info(shell.folder / "water.gpkg")["features"] > 0
    # Each class has as many polygons in the table as in the file, of the areas that shapely finds.
    _, _, shapes, fields = pyogrio.raw.read(shell.folder / "result" / "polygons.fgb", columns=["name"])
    names, areas = fields[0], shapely.area(shapely.from_wkb(shapes))
    rows = database.rows("SELECT name, count(*), sum(ST_Area(geom)) FROM water_polygons GROUP BY name ORDER BY name")
    assert [name for name, _, _ in rows] == sorted(set(names))
    for name, count, area in rows:
        assert int(count) == (names == name).sum() > 0
        assert float(area) == pytest.approx(areas[names == name].sum(), rel=1e-12)


def test_pooling(shell: Shell) -> None:
    port = str(free_port())
    try:
        for block in blocks("pooling.md"):
            # The page's web server is started in the background, on a port of the page.
            shell.take(replace(block, code=block.code.replace("8765", port)))
    finally:
        end_receiver(shell.folder, "server.pid")

    with rasterio.open(shell.folder / "scene.tif") as scene, rasterio.open(shell.folder / "prediction.tiff") as made:
        assert (made.transform, made.shape, made.crs) == (scene.transform, scene.shape, scene.crs)
        assert set(made.read(1).flat) <= {0, 1, 2, 3, 4, 255}


def test_ogc_client(shell: Shell) -> None:
    for block in blocks("ogc-client.md"):
        shell.take(block)

    folder = shell.folder
    job = (folder / "job.txt").read_text()
    assert (folder / "classes.tif").read_bytes()[:4] == b"II*\0"
    assert (folder / "preview.png").read_bytes().startswith(b"\x89PNG")
    listed = {found["jobID"]: found["status"] for found in json.loads((folder / "jobs.json").read_text())["jobs"]}
    assert (len(listed), listed[job]) == (2, "successful")
    with Client(shell.env["PENSTOCK_URL"]) as client:
        assert job not in [found.id for found in client.jobs().jobs]
