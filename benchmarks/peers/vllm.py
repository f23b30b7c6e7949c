"""vLLM's `/pooling` with TerraTorch's segmentation plugin, on the CPU; its answer is the map in Base64.

The plugin cuts tiles without overlap, one in a batch; the engine's core is a process of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.load import Lost, Submit
from benchmarks.peers.processes import find
from benchmarks.peers.serving import SERVERS, Http, Place, Supervised, answers, supervised, wait_until
from tests.support.stack import free_port

#: A machine's memory is not vLLM's alone, and the model keeps nothing in its cache. The plugin always sends float16:
#: with another dtype the engine ends at the first request.
OPTIONS = (
    "--model-impl", "terratorch", "--runner", "pooling", "--skip-tokenizer-init", "--enforce-eager",
    "--enable-mm-embeds", "--io-processor-plugin", "terratorch_segmentation", "--dtype", "float16",
    "--gpu-memory-utilization", "0.3", "--max-num-seqs", "8",
)  # fmt: skip
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}


class Vllm:
    """A running `vllm serve`."""

    def __init__(self, server: Supervised, port: int, place: Place) -> None:
        self._server, self._port, self._place = server, port, place

    def caller(self) -> Submit:
        """Return a call of `/pooling`."""
        connection = Http(self._port, self._place.work.patience_s)
        model = str(self._place.folder / "model")

        def submit(job: dict[str, Any]) -> None:
            data = {"data": job["scene"], "data_format": "path", "out_data_format": "b64_json"}
            status, answer = connection.ask("POST", "/pooling", {"model": model, "data": data})
            if status != 200:
                raise Lost(f"{status}: {answer}")

        return submit

    def roots(self) -> list[int]:
        """Return the server's process."""
        return [self._server.process.pid]

    def worker(self) -> int:
        """Return the process of the engine's core."""
        return find(self.roots(), "EngineCore")


@contextmanager
def serve(place: Place) -> Iterator[Vllm]:
    """Run it inside the block."""
    port, model = free_port(), place.folder / "model"
    made = subprocess.run(
        [place.python, SERVERS / "vllm_model.py", model], capture_output=True, text=True, check=False,
        env=place.environment(**ENVIRONMENT),
    )  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"its model could not be written: {made.stderr[-300:]}")
    command = [place.python.with_name("vllm"), "serve", model, "--host", "127.0.0.1", "--port", port, *OPTIONS]
    with supervised(place, command, **ENVIRONMENT) as server:
        wait_until(answers(port, "/health"), server, within_s=600)
        yield Vllm(server, port, place)
