"""Peers with an HTTP server: LitServe, Ray Serve, BentoML, RunPod's local worker and vLLM."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measuring import Http, Lost, find, tree
from benchmarks.peers.load import Submit
from benchmarks.peers.serving import SERVERS, Place, Supervised, answers, supervised, wait_until
from benchmarks.peers.works import Work
from tests.support.stack import free_port
from tests.support.valkey import start_valkey

RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_SERVE_LOG_TO_STDERR": "0", "RAY_DEDUP_LOGS": "0"}
VLLM = {"VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
#: A machine's memory is not vLLM's alone, and the model keeps nothing in its cache. The plugin always sends float16:
#: with another dtype the engine ends at the first request.
VLLM_OPTIONS = (
    "--model-impl", "terratorch", "--runner", "pooling", "--skip-tokenizer-init", "--enforce-eager",
    "--enable-mm-embeds", "--io-processor-plugin", "terratorch_segmentation", "--dtype", "float16",
    "--gpu-memory-utilization", "0.3", "--max-num-seqs", "8",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """A running server: how a job is sent to it, and which of its processes runs the model."""

    server: Supervised
    port: int
    work: Work
    #: Sends a job and returns at its end; raises `Lost`.
    send: Callable[[Http, Work, dict[str, Any]], None]
    find_worker: Callable[[Sequence[int]], int]
    #: Process id of the broker, if the peer has one.
    broker: int | None = None

    def caller(self) -> Submit:
        """Return a submission with a connection of its own."""
        connection = Http(self.port, self.work.patience_s)
        return lambda job: self.send(connection, self.work, job)

    def roots(self) -> list[int]:
        """Return the server's process and the broker."""
        return [self.server.process.pid, *([self.broker] if self.broker else [])]

    def worker(self) -> int:
        """Return the process that runs the model."""
        return self.find_worker(self.roots())


def call(connection: Http, path: str, body: Any = None) -> Any:
    """Return the answer of a POST with a body or of a GET; raise `Lost` for another status than 200."""
    status, answer = connection.ask("GET" if body is None else "POST", path, body)
    if status != 200:
        raise Lost(f"{status}: {answer}")
    return answer


def poll(work: Work, read_status: Callable[[], str], done: str, failed: Sequence[str]) -> None:
    """Read the status of a task until it is done; raise `Lost` if the task fails or does not end in time."""
    ends = time.monotonic() + work.patience_s
    while (status := read_status()) != done:
        if status in failed or time.monotonic() > ends:
            raise Lost(f"the task is {status}")
        time.sleep(work.poll_s)


def largest_child(roots: Sequence[int]) -> int:
    """Return the child that holds most memory: the process of the model, or for no-op jobs the first."""
    children = [process for process in tree(roots)[1:] if "resource_tracker" not in " ".join(process.cmdline())]
    return max(children, key=lambda process: process.memory_info().rss).pid


def first(roots: Sequence[int]) -> int:
    """Return the only process."""
    return roots[0]


@contextmanager
def litserve(place: Place) -> Iterator[HttpPeer]:
    """Run LitServe: one worker process; pictures in batches of 8. It has no queue beyond its process."""
    port, work = free_port(), place.work
    command = [place.python, SERVERS / "litserve_server.py", port, work.batch, work.patience_s]
    with supervised(place, command) as server:
        wait_until(answers(port, "/health"), server)
        yield HttpPeer(server, port, work, lambda http, _, job: call(http, "/predict", job), largest_child)


@contextmanager
def bentoml(place: Place) -> Iterator[HttpPeer]:
    """Run `bentoml serve`: one worker; the client asks for the status until the task has ended."""

    def send(connection: Http, work: Work, job: dict[str, Any]) -> None:
        task = call(connection, "/job/submit", {"order": job})["task_id"]
        status = lambda: str(call(connection, f"/job/status?task_id={task}")["status"])  # noqa: E731
        poll(work, status, "completed", ("failed", "canceled"))
        call(connection, f"/job/get?task_id={task}")

    port = free_port()
    command = [
        place.python, "-m", "bentoml", "serve", "bentoml_server:Peer", "--host", "127.0.0.1", "--port", port
    ]  # fmt: skip
    environment = {"BENTOML_HOME": place.folder / "home", "BENTOML_DO_NOT_TRACK": "True"}
    with supervised(place, command, **environment) as server:
        wait_until(answers(port, "/readyz"), server)
        yield HttpPeer(server, port, place.work, send, largest_child)


@contextmanager
def ray_serve(place: Place) -> Iterator[HttpPeer]:
    """Run Ray Serve with one replica: requests that wait for their answer, with batches of 8 for pictures."""
    port = free_port()
    with supervised(place, [place.python, SERVERS / "ray_server.py", port, place.work.batch], **RAY) as server:
        wait_until(answers(port, "/-/healthz"), server)
        wait_until(answers(port, "/-/routes"), server)
        replica = lambda roots: find(roots, "ServeReplica:default:Peer")  # noqa: E731
        yield HttpPeer(server, port, place.work, lambda http, _, job: call(http, "/job", job), replica)


@contextmanager
def ray_queue(place: Place) -> Iterator[HttpPeer]:
    """Run Ray Serve's asynchronous inference: a queue in Redis, by Celery, and the client asks for the status."""

    def send(connection: Http, work: Work, job: dict[str, Any]) -> None:
        task = call(connection, "/job", job)["id"]
        poll(work, lambda: str(call(connection, f"/job?id={task}")["status"]), "SUCCESS", ("FAILURE",))

    port, valkey = free_port(), start_valkey(place.folder / "valkey")
    broker = {"PEER_BROKER": valkey.url, "PEER_VISIBILITY_S": place.work.visibility_s}
    try:
        with supervised(place, [place.python, SERVERS / "ray_queue_server.py", port], **RAY, **broker) as server:
            wait_until(answers(port, "/-/routes"), server)
            replica = lambda roots: find(roots, "ServeReplica:default:Consumer")  # noqa: E731
            yield HttpPeer(server, port, place.work, send, replica, broker=valkey.pid)
    finally:
        valkey.stop()


@contextmanager
def runpod(place: Place) -> Iterator[HttpPeer]:
    """Run RunPod's local worker (`--rp_serve_api`), by `/runsync`: one process, one job at a time."""

    def send(connection: Http, _: Work, job: dict[str, Any]) -> None:
        answer = call(connection, "/runsync", {"input": job})
        if answer.get("status") != "COMPLETED":
            raise Lost(str(answer))

    port = free_port()
    flags = ["--rp_serve_api", "--rp_api_host", "127.0.0.1", "--rp_api_port", port, "--rp_log_level", "ERROR"]
    with supervised(place, [place.python, SERVERS / "runpod_server.py", *flags]) as server:
        wait_until(answers(port, "/openapi.json"), server)
        yield HttpPeer(server, port, place.work, send, first)


@contextmanager
def vllm(place: Place) -> Iterator[HttpPeer]:
    """Run vLLM's `/pooling` with TerraTorch's segmentation plugin, on the CPU; its answer is the map in Base64.

    The plugin cuts tiles without overlap, one in a batch; the engine's core is a process of its own.
    """
    port, model = free_port(), place.folder / "model"
    _write_vllm_model(place, model)

    def send(connection: Http, _: Work, job: dict[str, Any]) -> None:
        data = {"data": job["scene"], "data_format": "path", "out_data_format": "b64_json"}
        call(connection, "/pooling", {"model": str(model), "data": data})

    command = [place.python.with_name("vllm"), "serve", model, "--host", "127.0.0.1", "--port", port, *VLLM_OPTIONS]
    with supervised(place, command, **VLLM) as server:
        wait_until(answers(port, "/health"), server, within_s=600)
        yield HttpPeer(server, port, place.work, send, lambda roots: find(roots, "EngineCore"))


def _write_vllm_model(place: Place, model: Path) -> None:
    command = [place.python, SERVERS / "vllm_model.py", model]
    made = subprocess.run(command, capture_output=True, text=True, check=False, env=place.environment(**VLLM))
    if made.returncode:
        raise RuntimeError(f"its model could not be written: {made.stderr[-300:]}")
