"""Units of systemd: their commands, their grace, and the folders that they name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.cli.systemd import Installation, units

WHERE = Installation(Path("/opt/p/bin/penstock"), Path("/opt/p/valkey-server"), Path("/srv/p"), Path("/etc/p"), "ann")
UNITS = units(WHERE)


def value(unit: str, name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", UNITS[unit], re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_runs_as_its_user_and_writes_to_the_data_folder_only(unit: str) -> None:
    assert value(unit, "User") == "ann"
    assert value(unit, "ProtectSystem") == "strict"
    assert value(unit, "ReadWritePaths") == "/srv/p"
    assert value(unit, "NoNewPrivileges") == "true"
    assert value(unit, "CapabilityBoundingSet") == ""


def test_a_worker_has_thirty_seconds_more_than_it_gives_its_jobs() -> None:
    drain_s = int(value("penstock-worker@.service", "ExecStart").split()[-1])
    assert int(value("penstock-worker@.service", "TimeoutStopSec")) >= drain_s + 30


def test_a_worker_alone_gets_the_signal_and_outlives_an_io_process_without_memory() -> None:
    assert value("penstock-worker@.service", "KillMode") == "mixed"
    assert value("penstock-worker@.service", "OOMPolicy") == "continue"


def test_a_worker_may_use_devices_and_namespaces_and_the_others_may_not() -> None:
    closed = {"PrivateDevices=true", "RestrictNamespaces=true"}
    assert not closed & set(UNITS["penstock-worker@.service"].splitlines())
    for unit in UNITS.keys() - {"penstock-worker@.service"}:
        assert closed <= set(UNITS[unit].splitlines())


def test_valkey_writes_every_answer_to_disk() -> None:
    command = value("penstock-valkey.service", "ExecStart")
    assert command.startswith("/opt/p/valkey-server /etc/p/valkey.conf --dir /srv/p/valkey ")
    assert "--appendonly yes --appendfsync always" in command
    assert "--maxmemory-policy noeviction" in command


def test_units_are_printed_or_written_and_never_replaced_without_force(tmp_path: Path) -> None:
    runner = CliRunner()
    printed = runner.invoke(app, ["install", "systemd"])
    assert printed.exit_code == 0
    assert [name for name in UNITS if f"# {name}\n" in printed.stdout] == list(UNITS)

    folder = tmp_path / "units"
    assert runner.invoke(app, ["install", "systemd", "--to", str(folder)]).exit_code == 0
    assert sorted(path.name for path in folder.iterdir()) == sorted(UNITS)
    (folder / "penstock-api.service").write_text("mine")
    assert runner.invoke(app, ["install", "systemd", "--to", str(folder)]).exit_code == 2
    assert (folder / "penstock-api.service").read_text() == "mine"
    assert runner.invoke(app, ["install", "systemd", "--to", str(folder), "--force"]).exit_code == 0
    assert (folder / "penstock-api.service").read_text() != "mine"


@pytest.mark.parametrize("folder", ["relative", "/with space", "/per%cent"])
def test_a_folder_that_a_unit_cannot_name_is_refused(folder: str) -> None:
    assert CliRunner().invoke(app, ["install", "systemd", "--data", folder]).exit_code == 2
