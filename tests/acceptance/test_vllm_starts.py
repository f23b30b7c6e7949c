"""A vLLM whose start hangs, in a service of real processes: the other models serve, and the worker can leave."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.polling import wait_for
from tests.support.stack import running
from tests.support.vllm_command import vllm_command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.breadth]

RECORD = """
[models.{name}]
title = "A model in vLLM"
runner = "vllm"
processor = "openai-chat"
source = "{source}"
revision = "1"

[models.{name}.options]
start_timeout_s = {start_timeout_s}

[models.{name}.options.engine]
kv_cache_memory_bytes = 1_000_000
{engine}
"""


@pytest.fixture(autouse=True)
def command(tmp_path: Path) -> Iterator[None]:
    with vllm_command(tmp_path / "bin"):
        yield


def a_config(folder: Path, *, start_timeout_s: int) -> str:
    """Write two records, of which the first hangs, and return the settings."""
    (source := folder / "model").mkdir()
    (source / "config.json").write_text(json.dumps({"model_type": "llama"}))
    common = {"source": source, "start_timeout_s": start_timeout_s}
    hung = RECORD.format(name="hung", engine="hang_from = 1", **common)
    sound = RECORD.format(name="sound", engine="", **{**common, "start_timeout_s": 1800})
    (folder / "models.toml").write_text(hung + sound)
    return f'models = ["{folder / "models.toml"}"]\n'


def servers() -> list[psutil.Process]:
    """Return the processes of `vllm serve` that this process has started through others.

    Each leads a process group. A process that it starts has the same command line for a moment.
    """
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "--uds" in child.cmdline() and os.getpgid(child.pid) == child.pid:
                found.append(child)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def test_a_start_that_hangs_is_the_problem_of_its_model_alone(tmp_path: Path) -> None:
    config = a_config(tmp_path, start_timeout_s=3)
    with running(tmp_path / "data", config=config, model="sound") as stack, stack.client() as client:
        wait_for(lambda: client.model("sound").ready, "the other model does not serve", timeout_s=300)
        done = client.wait(client.submit("sound", {"prompt": "one two"}).id)
        assert (done.status, done.text) == ("succeeded", "one two")
        wait_for(
            lambda: "start" in (client.model("hung").problem or ""), "the hung model has no problem", timeout_s=300
        )
        said = "vLLM did not start within 3 s (`options.start_timeout_s`) and was ended; "
        assert (client.model("hung").problem or "").startswith(said)
        assert len(servers()) == 1


def test_a_worker_leaves_while_a_start_hangs(tmp_path: Path) -> None:
    config = a_config(tmp_path, start_timeout_s=3600) + "drain_s = 1\n"
    with running(tmp_path / "data", config=config, model="hung"):
        wait_for(servers, "vLLM is not started", timeout_s=300)
        [hung] = servers()
    wait_for(lambda: not hung.is_running() or hung.status() == psutil.STATUS_ZOMBIE, "vLLM outlives its worker")
