"""The standby of `penstock up`: a process that waits to become a worker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil

from penstock.up.children import Child


class Standby(Child):
    """A process that has imported what workers need and waits for one line of JSON on a pipe, which makes it a worker.

    `penstock.workers.standby` reads the line: the worker's id, the file of its log, and its environment variables.
    """

    _stdin = subprocess.PIPE

    def hand_over(self, orders: Mapping[str, Any]) -> psutil.Popen | None:
        """Give the process its orders and return it; None if there is none that lives. It belongs to the caller."""
        process = self._process
        if not isinstance(process, psutil.Popen) or not self.alive() or process.stdin is None:
            return None
        try:
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.close()
        except OSError:  # it has just ended
            return None
        self._process = None
        self._ledger.drop(self.name)
        return process

    def start(self) -> None:
        """Start the process, in place of one that has ended."""
        self._close_pipe()
        super().start()

    def terminate(self) -> None:
        """Request the process's end, which the end of its standard input requests too."""
        super().terminate()
        self._close_pipe()

    def kill(self) -> None:
        """End the process at once."""
        super().kill()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if isinstance(self._process, psutil.Popen) and self._process.stdin is not None:
            with suppress(OSError):  # the process has ended
                self._process.stdin.close()
