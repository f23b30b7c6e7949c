"""The orders that make a standby a worker: one line of JSON on its standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Orders:
    """A worker's part of what a new process gets by its command, its environment and its descriptors."""

    #: The id of the worker.
    worker: str
    #: Seconds without a job after which it leaves.
    idle_exit_s: float
    #: File of its log.
    log: str
    #: Variables of its environment beside those that the standby has.
    variables: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the orders as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, stream: BinaryIO) -> Orders | None:
        """Wait for the orders; return None if the stream ends before a whole line."""
        line = stream.readline()
        return cls(**json.loads(line)) if line.endswith(b"\n") else None
