"""The command line as a process of its own, beside a service in the test's process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """The output of a command."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Shell:
    """Runs commands with these variables and no other of ours."""

    variables: Mapping[str, str]
    folder: Path | None = None

    async def __call__(self, *words: str) -> Done:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "penstock.cli", *words, cwd=self.folder,
            env={**kept, "COLUMNS": "200", **self.variables}, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())
