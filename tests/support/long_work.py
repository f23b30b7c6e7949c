"""Work for the processes of `penstock.api.isolation`: its functions must be importable there."""

from __future__ import annotations

import os
import time

from penstock.errors import InvalidRequest, Issue


def process_id() -> int:
    """Return the id of the process that does the work."""
    return os.getpid()


def write_process_id_and_go_on(path: str) -> None:
    """Write the process' id into a file, and compute without end."""
    with open(path, "w") as file:  # noqa: PTH123  (also where pathlib is not imported)
        file.write(f"{os.getpid()}\n")
    while True:
        pass


def refuse() -> None:
    """Raise an error with an issue."""
    raise InvalidRequest("it does not fit", errors=[Issue("/a", "is required")])


class SlowToRead:
    """An argument whose reading takes this process more than two seconds of processor time."""

    def __setstate__(self, state: object) -> None:
        ends_s = time.process_time() + 2.2
        while time.process_time() < ends_s:
            pass

    def __getstate__(self) -> object:
        return 1


def size_of(_: SlowToRead) -> int:
    """Return a number."""
    return 1
