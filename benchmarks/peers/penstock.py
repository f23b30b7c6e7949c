"""Penstock itself, as `penstock up` starts it: API, one worker, keeper and Valkey, with a folder as object store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Http, Lost
from benchmarks.peers.load import Submit
from benchmarks.peers.serving import Place
from benchmarks.turns import ready_models, write_plugin
from penstock.client import Client
from tests.support.stack import Stack, running, wait_for

ROOT = Path(__file__).parents[2]


class Penstock:
    """A running service."""

    def __init__(self, stack: Stack, place: Place, wanted: dict[str, Any]) -> None:
        self._stack, self._place, self._wanted = stack, place, wanted

    def caller(self) -> Submit:
        """Return a submission that waits for the end of its job."""
        work = self._place.work
        connection = Http(self._stack.port, work.patience_s)
        body = {"model": work.model, "input": self._wanted}

        def submit(_: dict[str, Any]) -> None:
            ends = time.monotonic() + work.patience_s
            status, job = connection.ask("POST", "/v1/jobs", body, Prefer="wait=60")
            while status in (200, 202) and job["status"] != "succeeded" and time.monotonic() < ends:
                status, job = connection.ask("GET", f"/v1/jobs/{job['id']}?wait=60")
            if status not in (200, 202) or job["status"] != "succeeded":
                raise Lost(f"{status}: {job}")

        return submit

    def roots(self) -> list[int]:
        """Return `penstock up` and its Valkey."""
        return [self._stack.process.pid, self._stack.pid("valkey")]

    def worker(self) -> int:
        """Return the worker's process."""
        return self._stack.pid("worker")


@contextmanager
def _serve(durability: str, place: Place) -> Iterator[Penstock]:
    models = place.folder / "models.toml"
    models.write_text(place.work.record)
    config = f'slots = {place.work.in_flight}\nmodels = ["{models}"]\ndurability = "{durability}"\n'
    variables = {"PYTHONPATH": f"{ROOT}:{write_plugin(place.folder)}"}
    with running(place.folder / "data", config=config, **variables) as stack, stack.client() as client:
        # Also for csmask, which every installation has: its warm-up would compete with the first jobs.
        names = {place.work.model, "csmask"}
        wait_for(lambda: names <= ready_models(client), "the models are not ready", timeout_s=300)
        yield Penstock(stack, place, _wanted(client, place))


def _wanted(client: Client, place: Place) -> dict[str, Any]:
    """Return the input of a job; media are uploaded once."""
    match place.work.media, place.work.name:
        case None, _:
            return {"text": "nothing"}
        case media, "picture":
            return {"images": client.upload(media)}
        case media, _:
            return {"scene": client.upload(media), "outputs": ["classes"]}


serve_redis = partial(_serve, "redis")
serve_manifest = partial(_serve, "manifest")
