"""`penstock drops` where the settings have no rules: the service is asked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.config_tables import DropRule
from penstock.storage.redis.drop_events import Pass, note_pass
from tests.support.api_server import listening
from tests.support.service import serving
from tests.support.valkey import ValkeyProcess


async def penstock(*words: str) -> Result:
    """Run a command beside the service of the test's own thread."""
    return await asyncio.to_thread(CliRunner().invoke, app, words, env={"COLUMNS": "200"})


async def test_the_service_is_asked_for_its_rules(
    valkey: ValkeyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inbox := tmp_path / "inbox").mkdir()
    rule = DropRule(name="inbox", bucket=inbox.as_uri(), prefix="in/", model="echo", output_prefix="out/")
    async with serving(valkey.url, tmp_path / "data", drops=(rule,)) as service, listening(service) as server:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PENSTOCK_URL", server.url)
        unlisted = await penstock("drops")
        assert (unlisted.exit_code, "no keeper lists it" in unlisted.stdout) == (1, True)
        await service.jobs.run(note_pass("inbox", Pass(found=3, waiting=2, failed=1, took_s=0.1)))
        shown = await penstock("drops")
        assert shown.exit_code == 0, shown.stderr
        assert shown.stdout.splitlines()[1].split() == [
            "inbox",
            f"{inbox.as_uri()}/in/",
            "echo",
            "listing",
            "3",
            "2",
            "1",
            *["0", "s", "ago,", "took", "0.1", "s"],
        ]
        told = json.loads((await penstock("drops", "--json")).stdout)
        assert (told["rules"][0]["name"], told["rules"][0]["last_pass"]["found"]) == ("inbox", 3)
    away = await penstock("drops")
    assert "no drop rules are set here" in away.stdout
    assert "the service did not tell its rules: no answer from" in away.stderr
