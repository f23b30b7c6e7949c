"""Write the sync client, generated from the async one by unasync and formatted by ruff: `make client`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/penstock/client/async_client.py"
TARGET = SOURCE.with_name("sync_client.py")
NAMES = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "async_runtime": "sync_runtime",
}


def generated() -> str:
    """Return the text of the sync client's module."""
    with TemporaryDirectory() as folder:
        shutil.copy(SOURCE, folder)
        unasync.unasync_files([f"{folder}/{SOURCE.name}"], [unasync.Rule(SOURCE.name, TARGET.name, NAMES)])
        text = f"# Generated from {SOURCE.name} by `make client`.\n" + Path(folder, TARGET.name).read_text()
    for arguments in (["check", "--fix", "--unsafe-fixes", "--quiet"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    TARGET.write_text(generated())
