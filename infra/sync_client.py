"""Write the sync client, generated from the async one by unasync and formatted by ruff: `make client`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import unasync

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/penstock/client/asynchronous"
TARGET = SOURCE.with_name("synchronous")
NAMES = {
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "aread": "read",
    "asynchronous": "synchronous",
    "tasks": "threads",
}
PACKAGE = '"""The sync client, generated from `penstock.client.asynchronous` by `make client`: change that one."""\n'


def generated() -> dict[str, str]:
    """Return the texts of the sync client's modules, by file name."""
    with TemporaryDirectory() as folder:
        source = shutil.copytree(SOURCE, Path(folder, SOURCE.name))
        modules = sorted(path for path in source.glob("*.py") if path.name != "__init__.py")
        rule = unasync.Rule(f"/{SOURCE.name}/", f"/{TARGET.name}/", NAMES)
        unasync.unasync_files([str(path) for path in modules], [rule])
        texts = {path.name: Path(folder, TARGET.name, path.name).read_text() for path in modules}
    head = f"# Generated from the module in {SOURCE.name} by `make client`.\n"
    return {"__init__.py": PACKAGE, **{name: _formatted(name, head + text) for name, text in texts.items()}}


def _formatted(name: str, text: str) -> str:
    for arguments in (["check", "--fix", "--unsafe-fixes", "--quiet"], ["format"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET / name), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


if __name__ == "__main__":
    made = generated()
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    for module, content in made.items():
        (TARGET / module).write_text(content)
