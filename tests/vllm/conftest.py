"""vLLM itself: a tiny Prithvi, vLLM's own server asked first, and then ours. One engine at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.local.library import Engine
from penstock.processors.geo.sample import write_sample
from tests.support.polling import wait_for
from tests.support.stack import free_port

TINY = Path(__file__).with_name("tiny.py")
REAL = Path(__file__).parents[3] / "shared" / "data" / "geo"
#: Seconds that an engine may take to start where others work too.
START_S = 900
#: Options of both engines. A machine's memory is not theirs alone, and the model keeps nothing in it. Both
#: compute a tile at a time: in float16 a tile's neighbours in its batch change its last bits, and so a few near-ties.
ENGINE = {"dtype": "float16", "gpu_memory_utilization": 0.3}
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def tiny(folder: Path) -> Path:
    """Return the directory of a Prithvi with random weights."""
    subprocess.run([sys.executable, TINY, folder / "tiny"], check=True, env=os.environ | ENVIRONMENT)
    return folder / "tiny"


@pytest.fixture(scope="session")
def scenes(folder: Path) -> Mapping[str, Path]:
    """Return scenes by name: whole tiles, tiles that are padded, and real ones where they are."""
    made = {"whole": 256, "padded": 200}
    for name, size_px in made.items():
        write_sample(folder / f"{name}.tif", size_px=size_px)
    names = ("s2_l2a_aquileia_20190416_6b", "l7_olinda_6b_uint8")
    real = {name: REAL / f"{name}.tif" for name in names if (REAL / f"{name}.tif").is_file()}
    return {**{name: folder / f"{name}.tif" for name in made}, **real}


@pytest.fixture(scope="session")
def answers(tiny: Path, scenes: Mapping[str, Path], folder: Path) -> Mapping[str, dict[str, Any]]:
    """Return what vLLM's own `/pooling` answers for each scene; its server has ended then."""
    with _server(tiny, folder / "serve.log") as url:
        return {name: _asked(url, str(tiny), path) for name, path in scenes.items()}


@pytest.fixture(scope="session")
def engine(tiny: Path, folder: Path, answers: object) -> Iterator[Engine]:  # noqa: ARG001  (one engine at a time)
    """Return ours, which runs processors in processes of their own as workers do."""
    options = "\n".join(f"{name} = {json.dumps(value)}" for name, value in ENGINE.items())
    (folder / "models.toml").write_text(
        f'[models.prithvi]\ntitle = "Prithvi"\nrunner = "vllm"\nprocessor = "vllm-plugin"\nsource = "{tiny}"\n'
        f'revision = "1"\nmax_batch = 1\n[models.prithvi.options]\nplugin = "terratorch_segmentation"\n'
        f"[models.prithvi.options.engine]\n{options}\n"
    )
    with Engine(catalogue=[folder / "models.toml"], isolated=True) as engine:
        yield engine


def own_answers(folder: Path, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the answers of vLLM's `LLM.chat`, from a process of its own that has ended."""
    found: list[dict[str, Any]] = own_json("own_texts.py", folder, asked)
    return found


def own_json(script: str, folder: Path, asked: dict[str, Any]) -> Any:
    """Return what a script beside this file writes about what it is asked; its process has ended."""
    command = [sys.executable, Path(__file__).with_name(script), folder / "answers.json"]
    env = os.environ | ENVIRONMENT
    done = subprocess.run(command, input=json.dumps(asked), env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "answers.json").read_text())


def token_ids(data: dict[str, Any]) -> list[int]:
    """Return the token ids of a result's first answer, asked for by `logprobs` and `return_tokens_as_token_ids`."""
    tokens = data["choices"][0]["logprobs"]["content"]
    return [int(token["token"].removeprefix("token_id:")) for token in tokens]


@contextmanager
def _server(tiny: Path, log: Path) -> Iterator[str]:
    options = {**ENGINE, "max_num_seqs": 1}
    said = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    more = [
        "--model-impl", "terratorch", "--runner", "pooling", "--skip-tokenizer-init", "--enforce-eager",
        "--enable-mm-embeds", "--io-processor-plugin", "terratorch_segmentation", *said,
    ]  # fmt: skip
    with serving(tiny, log, more) as url:
        yield url


@contextmanager
def serving(model: Path, log: Path, options: Sequence[str]) -> Iterator[str]:
    """Run vLLM's own server with a model and return its address."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [
        Path(sys.executable).with_name("vllm"), "serve", model, "--host", "127.0.0.1", "--port", str(port), *options,
    ]  # fmt: skip
    with log.open("wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, env=os.environ | ENVIRONMENT, cwd=log.parent, process_group=0
        )
    try:
        wait_for(lambda: _healthy(url, server, log), f"vLLM does not start: {log}", timeout_s=START_S)
        yield url
    finally:
        server.terminate()
        server.wait(120)
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)  # what it may have left of itself


def _healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> bool:
    assert server.poll() is None, log.read_text()[-3000:]
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _asked(url: str, model: str, scene: Path) -> dict[str, Any]:
    data = {"data": str(scene), "data_format": "path", "out_data_format": "b64_json"}
    body = json.dumps({"model": model, "data": data}).encode()
    request = urllib.request.Request(f"{url}/pooling", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)
    return found
