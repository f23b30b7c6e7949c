"""The check of a network by TerraTorch itself, in a process of its own: its import takes many seconds and much memory.

`python -m penstock.workers.engine.terratorch.rehearsal` reads a model's record from standard input and prints, as its
last line, a JSON object with the `problem`: a sentence, or null.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from penstock.errors import ModelUnavailable
from penstock.models import Model


def rehearse(model: Model) -> None:
    """Have TerraTorch build the model's network without the numbers of its weights; raise `ModelUnavailable`."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "penstock.workers.engine.terratorch.rehearsal"],
        input=model.model_dump_json(), capture_output=True, text=True, check=False,
        # A check fetches nothing, whatever a network asks for while it is built.
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
        raise ModelUnavailable(f"TerraTorch's check of the network ended with {done.returncode}: {last[:200]}")
    if problem := json.loads(done.stdout.splitlines()[-1])["problem"]:
        raise ModelUnavailable(problem)


def _main() -> None:
    model = Model.model_validate_json(sys.stdin.read())
    # TerraTorch is not imported where only the caller is needed.
    from penstock.workers.engine.terratorch.checkpoint import Checkpoint
    from penstock.workers.engine.terratorch.network import outline

    problem = None
    try:
        outline(Checkpoint.of(model))
    except ModelUnavailable as error:
        problem = error.detail
    print(json.dumps({"problem": problem}))  # noqa: T201


if __name__ == "__main__":
    _main()
