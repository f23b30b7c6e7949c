"""`penstock drops` where the settings have no rules: the service is asked."""

from __future__ import annotations

from pathlib import Path

from penstock.config import DropRule
from penstock.storage.redis.drop_events import Pass, note_pass
from tests.support.api_server import listening
from tests.support.command_line import Shell
from tests.support.service import serving
from tests.support.valkey import ValkeyProcess


async def test_the_service_is_asked_for_its_rules(valkey: ValkeyProcess, tmp_path: Path) -> None:
    (inbox := tmp_path / "inbox").mkdir()
    rule = DropRule(name="inbox", bucket=inbox.as_uri(), prefix="in/", model="echo", output_prefix="out/")
    async with serving(valkey.url, tmp_path / "data", drops=(rule,)) as service, listening(service) as server:
        penstock = Shell({"PENSTOCK_URL": server.url}, folder=tmp_path)
        unlisted = await penstock("drops")
        assert (unlisted.code, "no keeper lists it" in unlisted.out) == (1, True)
        await service.jobs.run(note_pass("inbox", Pass(found=3, waiting=2, failed=1, took_s=0.1)))
        shown = await penstock("drops")
        assert shown.code == 0, shown.err
        assert shown.out.splitlines()[1].split() == ["inbox", f"{inbox.as_uri()}/in/", "echo", "3", "2", "1"]
        told = (await penstock("drops", "--json")).document()
        assert (told["rules"][0]["name"], told["rules"][0]["last_pass"]["found"]) == ("inbox", 3)
    away = await penstock("drops")
    assert "no drop rules are set here" in away.out
    assert "the service did not tell its rules: no answer from" in away.err
