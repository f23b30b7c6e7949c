"""Scratch folders: what is in use stays, what a dead process left goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from penstock.storage.spool import own_folder

DEADLY = """
import os, signal, sys
from pathlib import Path
from penstock.storage.spool import own_folder
with own_folder(Path(sys.argv[1])) as folder:
    (folder / "much").write_bytes(bytes(1000))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(tmp_path: Path) -> None:
    (tmp_path / "uploads").mkdir()
    with own_folder(tmp_path) as mine:
        killed = subprocess.run([sys.executable, "-c", DEADLY, str(tmp_path)], check=False)
        assert killed.returncode == -signal.SIGKILL
        [left] = set(tmp_path.iterdir()) - {mine, tmp_path / "uploads"}
        assert (left / "much").stat().st_size == 1000
        with own_folder(tmp_path) as other:
            assert {path.name for path in tmp_path.iterdir()} == {mine.name, other.name, "uploads"}
    assert [path.name for path in tmp_path.iterdir()] == ["uploads"]


def test_many_at_once_take_nobodys_folder_away(tmp_path: Path) -> None:
    def use(number: int) -> bool:
        with own_folder(tmp_path) as folder:
            (folder / "file").write_text(str(number))
            os.sched_yield()
            return (folder / "file").read_text() == str(number)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(use, range(2000)))
    assert list(tmp_path.iterdir()) == []
