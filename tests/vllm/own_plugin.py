"""vLLM's own answer of an IO-processor plugin: `python own_plugin.py ANSWER < {"engine", "data"}`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answer(asked: dict[str, Any]) -> Any:
    """Return the plugin's answer to the data, by `LLM.encode`."""
    from vllm import LLM

    [made] = LLM(**asked["engine"]).encode({"data": asked["data"]}, pooling_task="plugin", use_tqdm=False)
    return made.outputs


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))))
