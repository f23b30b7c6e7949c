"""Access rights of the folder that `penstock up` makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.doctor import examine
from penstock.config import Settings
from penstock.errors import ConfigError
from penstock.storage.objects.opening import open_store
from penstock.up.supervisor import up
from tests.support.polling import wait_for
from tests.support.valkey import ValkeyProcess

#: The supervisor with its Valkey and nobody else, under the umask that lets all read.
_UP = """
import os, sys
from pathlib import Path
from penstock.config import Settings
from penstock.up.supervisor import up
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


#: The supervisor with children that write down their environment, named as its own are.
_ENVIRONMENTS = _UP.replace(
    "roles=lambda _: ()",
    "roles=lambda settings: [replace(r, command=(sys.executable, '-c', TELL, r.name)) for r in our_roles(settings)]",
).replace(
    "import up\n",
    "import our_roles, up\nfrom dataclasses import replace\n"
    "TELL = '''import os, sys, time\n"
    'open(sys.argv[1] + ".env", "w").write(os.environ.get("PENSTOCK_SECRET", "none"))\n'
    "time.sleep(600)'''\n",
)


def test_only_the_api_gets_the_signing_secret(tmp_path: Path) -> None:
    env = {**os.environ, "PENSTOCK_SECRET": "the-secret-of-the-service"}
    script = [sys.executable, "-c", _ENVIRONMENTS, str(tmp_path / "data")]
    with subprocess.Popen(script, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        files = {name: tmp_path / f"{name}.env" for name in ("api", "keeper", "worker")}
        wait_for(lambda: all(file.is_file() and file.read_text() for file in files.values()), "not all were started")
        process.send_signal(signal.SIGTERM)
    seen = {name: file.read_text() for name, file in files.items()}
    assert seen == {"api": "the-secret-of-the-service", "keeper": "none", "worker": "none"}


def test_objects_are_the_operators_alone_and_results_in_a_watched_folder_are_not(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path / "data")
    before = os.umask(0o022)
    try:
        for url in (settings.store_url, (tmp_path / "bucket").as_uri()):
            store = open_store(url, settings)
            store.put_bytes("a/b", b"x", content_type="text/plain")
            part = tmp_path / "part"
            part.write_bytes(b"y")
            store.begin_multipart("a/c", content_type="text/plain")
            store.complete_multipart("a/c", [store.put_part("a/c", 1, part, md5="0" * 32)])
    finally:
        os.umask(before)
    own, watched = tmp_path / "data" / "objects", tmp_path / "bucket"
    assert {(own / name).stat().st_mode & 0o777 for name in ("a/b", "a/c")} == {0o600}
    assert {(watched / name).stat().st_mode & 0o777 for name in ("a/b", "a/c")} == {0o644}


def of_the_data_folder(data: Path, valkey: ValkeyProcess) -> str:
    """Return what `penstock doctor` tells of it."""
    settings = Settings(data=data, redis_url=valkey.url)
    (found,) = [f for f in examine(settings, "http://127.0.0.1:1") if f.name == "data folder"]
    assert found.ok
    return found.detail


def test_what_is_made_is_the_operators_alone(valkey: ValkeyProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    run_up(data)
    assert modes(data) == dict.fromkeys((".", "logs", "objects", "spool", "valkey"), 0o700)
    assert of_the_data_folder(data, valkey).endswith("(mode 0700): only you can read it")


@pytest.mark.breadth
def test_what_the_operator_shares_stays_shared(valkey: ValkeyProcess, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "objects").mkdir(parents=True)
    for folder in (data, data / "objects"):
        folder.chmod(0o750)
    run_up(data)
    assert modes(data) == {".": 0o750, "objects": 0o750} | dict.fromkeys(("logs", "spool", "valkey"), 0o700)
    assert f"`chmod 700 {data}`" in of_the_data_folder(data, valkey)


def test_a_file_in_a_folders_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match="objects cannot be used: File exists"):
        up(Settings(data=tmp_path, port=0), lambda *_: None, roles=lambda _: ())
