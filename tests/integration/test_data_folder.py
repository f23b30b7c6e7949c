"""Who may look into what `penstock up` makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.doctor import examine
from penstock.errors import ConfigError
from penstock.up import up

#: The supervisor with its Valkey and nobody else, under the umask that lets all read.
_UP = """
import os, sys
from pathlib import Path
from penstock.config import Settings
from penstock.up import up
os.umask(0o022)
up(Settings(data=Path(sys.argv[1]), port=0), lambda *words: print(*words, flush=True), roles=lambda _: ())
"""


def run_up(data: Path) -> None:
    """Run it until it has started what it starts."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    process = subprocess.Popen([sys.executable, "-c", _UP, str(data)], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("access"):
            process.send_signal(signal.SIGTERM)
    process.stdout.close()
    assert process.wait(60) == 0, "".join(said)


def modes(folder: Path) -> dict[str, int]:
    """Return the modes of a folder's folders, and of itself as `.`."""
    found = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir() if path.is_dir()}
    return found | {".": folder.stat().st_mode & 0o777}


def of_the_data_folder(data: Path) -> str:
    """Return what `penstock doctor` tells of it."""
    settings = Settings(data=data, redis_url="redis://127.0.0.1:1/0")
    (found,) = [f for f in examine(settings, "http://127.0.0.1:1") if f.name == "data folder"]
    assert found.ok
    return found.detail


def test_what_is_made_is_the_operators_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run_up(data)
    assert modes(data) == dict.fromkeys((".", "logs", "objects", "spool", "valkey"), 0o700)
    assert of_the_data_folder(data).endswith("(mode 0700): yours alone")


def test_what_the_operator_shares_stays_shared(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "objects").mkdir(parents=True)
    for folder in (data, data / "objects"):
        folder.chmod(0o750)
    run_up(data)
    assert modes(data) == {".": 0o750, "objects": 0o750} | dict.fromkeys(("logs", "spool", "valkey"), 0o700)
    assert f"`chmod 700 {data}`" in of_the_data_folder(data)


def test_a_file_in_a_folders_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="objects cannot be used: File exists"):
        up(Settings(data=tmp_path, port=0), lambda *_: None, roles=lambda _: ())
