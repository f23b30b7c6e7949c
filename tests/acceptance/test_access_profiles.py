"""From a catalogue that wants credentials to a map, by the command line: and the secret is written nowhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.client import Client
from penstock.processors.geo.sample import write_sample
from tests.support.stac_server import StacApi, scene_item
from tests.support.stack import Stack, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECRET, WRONG = "s3cr3t-of-the-catalogue", "wr0ng-of-the-catalogue"
BANDS = ("blue", "green", "red", "nir", "swir16", "swir22")
CONFIG = """
log_level = "debug"
allowed_hosts = ["{host}"]

[[access_profiles]]
name = "theirs"
kind = "header"
header = "X-Key"
hosts = ["{host}"]
secret = {{ file = "{secret}" }}
"""


def written(folder: Path, secret: Path) -> list[str]:
    """Return the files below a folder that hold one of the secrets."""
    files = [path for path in folder.rglob("*") if path.is_file() and path != secret]
    return [str(path) for path in files if any(each.encode() in path.read_bytes() for each in (SECRET, WRONG))]


def said(stack: Stack, client: Client) -> str:
    """Return all that the service tells of its jobs."""
    found = [client.job(job.id) for job in client.jobs(limit=50).jobs]
    events = [str(event) for job in found for event in client.event_list(job.id)]
    logs = [stack.cli("logs", job.id, check=False).stdout for job in found]
    return json.dumps([dict(job.raw) for job in found]) + "".join([*events, *logs])


def test_a_search_becomes_maps_and_no_secret_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenes, secret, data = tmp_path / "scenes", tmp_path / "secret", tmp_path / "data"
    scenes.mkdir()
    write_sample(scenes / "scene.tif", size_px=128)
    secret.write_text(SECRET)
    with StacApi(folder=scenes, needs=("X-Key", SECRET)).serve() as api:
        at = datetime(2026, 5, 1, 10, tzinfo=UTC)
        api.items = [scene_item(api, scenes / "scene.tif", "one", "s2", at, 12.0, BANDS)]
        api.items[0]["assets"]["image"]["alternate"] = {"gone": {"href": f"{api.url}/files/gone.tif"}}
        with running(data, config=CONFIG.format(host=api.host, secret=secret)) as stack, stack.client() as client:
            monkeypatch.setenv("PENSTOCK_CONFIG", str(data / "penstock.toml"))
            monkeypatch.chdir(tmp_path)
            lines = stack.cli("search", "s2", "--stac", api.url, "--cloud-below", "20", "--jobs", "scene").stdout
            (tmp_path / "requests.jsonl").write_text(lines)
            stack.cli("batch", "submit", "requests.jsonl", "--model", "csmask", "--out", "result", "--files")
            assert (tmp_path / "result" / "one" / "classes.tif").stat().st_size > 0

            secret.write_text(WRONG)
            stack.cli("batch", "submit", "requests.jsonl", "--model", "csmask", "--out", "again", check=False)
            failed = json.loads((tmp_path / "again" / "errors.jsonl").read_text())
            assert "access profile 'theirs'" in json.dumps(failed)

            everything = said(stack, client)
            assert "theirs" in everything
            assert SECRET not in everything
            assert WRONG not in everything
            assert written(data, secret) == []  # the log, Valkey's log, records, events, results
    assert "attempt.ended" in (data / "up.log").read_text() + "".join(
        path.read_text() for path in (data / "logs").glob("*.log")
    )
    assert written(tmp_path, secret) == []
