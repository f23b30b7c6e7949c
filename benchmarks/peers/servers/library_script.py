"""`penstock.Engine` in one process: `library_script.py READY CATALOGUE MODEL`; reads jobs from its input, one a line.

When the model is loaded, the file `READY-PID` is written.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import penstock


def main(ready: str, catalogue: Path, model: str) -> None:
    """Map scenes until the input ends."""
    with penstock.Engine(catalogue=[catalogue]) as engine:
        Path(f"{ready}-{os.getpid()}").touch()
        for line in sys.stdin:
            job = json.loads(line)
            engine.run(model, scene=Path(job["scene"]), outputs=["classes"], out=Path(job["out"]).with_suffix(""))
            Path(job["done"]).touch()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
