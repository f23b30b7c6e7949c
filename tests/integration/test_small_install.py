"""The client's small install: httpx2, and for webhooks nothing."""

from __future__ import annotations

import subprocess
import sys

#: httpx2 and its own dependencies.
ALLOWED = {
    "penstock", "httpx2", "httpcore2", "h11", "anyio", "truststore", "idna", "typing_extensions",
}  # fmt: skip

PROGRAM = """
import importlib.abc, sys

class Small(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)

allowed = set(sys.argv[1:])
for name in [name for name in sys.modules if name.partition(".")[0] not in allowed | sys.stdlib_module_names]:
    if not name.startswith("__"):
        del sys.modules[name]
sys.meta_path.insert(0, Small())
from penstock.client import AsyncClient, Client, Unreachable
import penstock.webhooks
try:
    Client("http://127.0.0.1:9", patience_s=0).models()
except Unreachable:
    AsyncClient("http://127.0.0.1:9")
    print("asked")
"""


def test_the_client_asks_without_the_servers_dependencies() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *ALLOWED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.returncode) == ("asked\n", 0), done.stderr
