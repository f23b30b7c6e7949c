"""The page's own JavaScript modules, run by Node.js."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

UI = Path(__file__).parents[2] / "api" / "ui" / "src"


def answer_of(script: str, module: str, given: Any) -> Any:
    """Return the JSON that a script prints of the JSON it reads from standard input; `page` is the named module.

    Skips without Node.js, and fails in CI.
    """
    node = shutil.which("node")
    if node is None:
        reason = "needs Node.js 18 or newer: apt-get install nodejs"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    head = 'import { readFileSync } from "node:fs";\nconst given = JSON.parse(readFileSync(0));\n'
    head += f"const page = await import({json.dumps((UI / module).as_uri())});\n"
    command = [node, "--no-warnings", "--input-type=module", "-e", head + script]
    done = subprocess.run(command, input=json.dumps(given), text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
