"""OGC API - Processes with the client that GIS people have (OWSLib), on a service as a user starts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from owslib.ogcapi.processes import Processes

from penstock.client import Client
from tests.support import web_server
from tests.support.polling import wait_for
from tests.support.stack import Stack, running
from tests.support.webhook_receivers import receiving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OUTPUTS = {"classes": {"transmissionMode": "reference"}, "stats": {}}


@pytest.mark.breadth
def test_owslib_describes_executes_polls_fetches_and_dismisses(tmp_path: Path) -> None:
    with (
        receiving() as subscriber,
        web_server.Server(lambda _: web_server.reply(200, (tmp_path / "scene.tif").read_bytes())) as files,
        running(tmp_path / "data", config=allowing(subscriber.pair, f"127.0.0.1:{files.port}")) as stack,
        stack.client() as client,
    ):
        media = upload(stack, client, tmp_path / "scene.tif")
        ogc = Processes(f"{stack.url}/ogc")
        assert {"core", "dismiss"} <= {name.rpartition("/")[2] for name in ogc.conformance()["conformsTo"]}
        assert "csmask" in [process["id"] for process in ogc.processes()]
        described = ogc.process("csmask")
        assert set(OUTPUTS) < set(described["outputs"])
        assert described["inputs"]["scene"]["schema"]["type"] == "string"

        scene = {"scene": {"href": media, "type": "image/tiff"}}
        job = ogc.execute("csmask", inputs=scene, outputs=OUTPUTS, async_=True)["jobID"]
        assert ogc.response_headers["Location"] == f"{stack.url}/ogc/jobs/{job}"
        info = ended(ogc, job)
        assert (info["status"], info["progress"], info["processID"]) == ("successful", 100, "csmask")
        results = ogc._request(path=f"jobs/{job}/results")

        client.download(client.job(job), tmp_path / "native")
        assert results["stats"]["value"] == json.loads((tmp_path / "native" / "stats.json").read_text())
        assert (results["stats"]["value"]["scene"]["width"], results["stats"]["mediaType"]) == (128, "application/json")
        assert httpx2.get(results["classes"]["href"]).content == (tmp_path / "native" / "classes.tif").read_bytes()
        assert not (tmp_path / "native" / "preview.png").exists()

        bad = ogc.execute("csmask", inputs={"scene": unreadable(client, tmp_path)}, outputs=OUTPUTS, async_=True)
        assert ended(ogc, bad["jobID"])["status"] == "failed"
        with pytest.raises(RuntimeError, match="media_unreadable"):
            ogc._request(path=f"jobs/{bad['jobID']}/results")

        far = {"scene": {"href": f"http://127.0.0.1:{files.port}/scene.tif", "type": "image/tiff"}}
        body = {"inputs": far, "outputs": OUTPUTS, "subscriber": {"successUri": subscriber.url}}
        told = ogc._request(method="POST", path="processes/csmask/execution", data=body)["jobID"]
        _, sent = subscriber.got.get(timeout=120)
        assert json.loads(sent)["stats"]["href"] == f"{stack.url}/v1/jobs/{told}/artifacts/stats.json"
        made = (tmp_path / "native" / "classes.tif").read_bytes()
        assert httpx2.get(json.loads(sent)["classes"]["href"]).content == made
        with pytest.raises(RuntimeError, match="/inputs/scene"):
            ogc.execute("csmask", inputs={"scene": {"href": "http://127.0.0.1:1/scene.tif"}}, async_=True)

        client.pause_queue()
        waiting = ogc.execute("csmask", inputs=scene, outputs=OUTPUTS, async_=True)["jobID"]
        assert ogc._request(method="DELETE", path=f"jobs/{waiting}")["status"] == "dismissed"
        assert ogc._request(path=f"jobs/{waiting}")["status"] == "dismissed"
        assert ogc._request(method="DELETE", path=f"jobs/{job}")["status"] == "dismissed"
        with pytest.raises(RuntimeError, match="no-such-job"):
            ogc._request(path=f"jobs/{job}")


def allowing(*pairs: str) -> str:
    """Return a configuration in which these may be fetched from and told."""
    return f"allowed_hosts = {json.dumps(pairs)}\n"


def upload(stack: Stack, client: Client, scene: Path) -> str:
    """Make a small scene and send it."""
    stack.cli("sample", str(scene), "--size", "128")
    return client.upload(scene)


def unreadable(client: Client, folder: Path) -> str:
    """Send a file that is no raster."""
    (folder / "no.tif").write_bytes(b"no raster at all")
    return client.upload(folder / "no.tif")


def ended(ogc: Processes, job: str) -> dict[str, Any]:
    """Poll, as the client's users do, until the job is over."""
    last: list[dict[str, Any]] = []

    def over() -> bool:
        last.append(ogc._request(path=f"jobs/{job}"))
        return last[-1]["status"] not in ("accepted", "running")

    wait_for(over, f"the job {job} did not end", timeout_s=120)
    return last[-1]
