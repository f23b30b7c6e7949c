"""The start of a fork server: what it imports, every fork copies."""

from __future__ import annotations

import subprocess
import sys


def test_a_fork_server_imports_nothing_that_only_others_need() -> None:
    code = (
        "import sys\n"
        "from penstock.workers.io.start import lean_server\n"
        "lean_server()\n"
        "unwanted = {'rich', 'pygments', 'httpx2', 'psutil', 'pydantic_settings', 'boto3', 'redis'}\n"
        "print(sorted(unwanted & set(sys.modules)), 'rich' in sys.modules)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "[] False\n", ended.stderr  # so that a processor may import it
