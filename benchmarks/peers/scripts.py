"""Programs that map one scene after the other, without a server or a queue: `tiled_inference` and `penstock.Engine`."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measuring import START_S, Lost
from benchmarks.peers.load import Submit
from benchmarks.peers.serving import SERVERS, Place, Supervised, supervised
from benchmarks.peers.works import CUTS
from tests.support.polling import wait_for

READY = "ready"


class Script:
    """A running script, which reads jobs from its input and writes answers to a file for each job."""

    def __init__(self, server: Supervised, place: Place) -> None:
        self._server, self._place = server, place
        self._turn = threading.Lock()

    def caller(self) -> Submit:
        """Return a call that waits for its turn, and for the script if it has just been started again."""

        def submit(job: dict[str, Any]) -> None:
            with self._turn:
                wait_for(self.is_ready, "the script is not ready", timeout_s=START_S)
                process = self._server.process
                try:
                    self._answer(process, job)
                except OSError as error:
                    raise Lost(str(error)) from error

        return submit

    def is_ready(self) -> bool:
        """Return True if the running process has loaded the model."""
        process = self._server.process
        return (self._place.folder / f"{READY}-{process.pid}").exists() and process.poll() is None

    def _answer(self, process: subprocess.Popen[bytes], job: dict[str, Any]) -> None:
        done = self._place.folder / f"{job['out'].rpartition('/')[2]}.done"
        if process.stdin is None:
            raise RuntimeError("the script has no input")
        process.stdin.write(json.dumps({**job, "done": str(done)}).encode() + b"\n")
        process.stdin.flush()
        ends = time.monotonic() + self._place.work.patience_s
        while not done.exists():
            if process.poll() is not None:
                raise Lost("the script ended")
            if time.monotonic() > ends:
                raise Lost("it did not end in time")
            time.sleep(0.02)

    def roots(self) -> list[int]:
        """Return the only process."""
        return [self._server.process.pid]

    def worker(self) -> int:
        """Return the only process."""
        return self._server.process.pid


@contextmanager
def tiled_inference(place: Place) -> Iterator[Script]:
    """Run TerraTorch's `tiled_inference` with the tiles of Penstock's record."""
    tile_px, halo_px, _ = CUTS[place.work.name]
    how = {"crop": tile_px + 2 * halo_px, "stride": tile_px, "delta": halo_px, "batch_size": 1}
    if not halo_px:
        how |= {"padding": False, "average_patches": False, "blend_overlaps": False}
    with _running(place, SERVERS / "tiled_inference_script.py", place.folder / READY, json.dumps(how)) as script:
        yield script


@contextmanager
def library(place: Place) -> Iterator[Script]:
    """Run `penstock.Engine` in one process."""
    models = place.folder / "models.toml"
    models.write_text(place.work.record)
    words = (place.folder / READY, models, place.work.model)
    with _running(place, SERVERS / "library_script.py", *words) as script:
        yield script


@contextmanager
def _running(place: Place, script: Path, *words: object) -> Iterator[Script]:
    with supervised(place, [place.python, script, *words]) as server:
        service = Script(server, place)
        wait_for(lambda: service.is_ready() or server.process.poll() is not None, "no script", timeout_s=START_S)
        if server.process.poll() is not None:
            raise RuntimeError(server.last_words())
        yield service
