"""Run scenarios and print a line for each: `python -m tests.chaos [--full] [--seed N] [NAME ...]`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.run import CannotRun, Run
from tests.chaos.scenarios import SCENARIOS
from tests.support.ceph import Ceph, start_ceph


def main(arguments: list[str]) -> int:
    """Return 0 when every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Attack the job core and count.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--full", action="store_true", help="at the sizes of the promise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--durability", choices=("redis", "manifest"), default="manifest")
    parser.add_argument("--keep", action="store_true", help="keep the folder of a run, with its logs")
    chosen = parser.parse_args(arguments)
    failed = 0
    with ceph_when_asked() as ceph:
        for name in chosen.names or SCENARIOS:
            folder = Path(tempfile.mkdtemp(prefix=f"chaos-{name}-"))
            run = Run(folder, chosen.seed, full=chosen.full, durability=chosen.durability, ceph=ceph)
            try:
                say(str(SCENARIOS[name](run)))
            except CannotRun as reason:
                say(f"{name}: NOT RUN, {reason}")
            except Exception:
                failed += 1
                say(f"{name}: seed={chosen.seed} BROKEN, logs in {folder}\n{traceback.format_exc()}")
                continue
            if not chosen.keep:
                shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


class CephWhenAsked:
    """Starts the S3 server at the first call."""

    def __init__(self) -> None:
        self._running: Ceph | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="ceph-"))

    def __call__(self) -> Ceph:
        """Return the server."""
        if self._running is None:
            self._running = start_ceph(self._folder)
        return self._running

    def stop(self) -> None:
        """End the server, if it runs."""
        if self._running is not None:
            self._running.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def ceph_when_asked() -> Iterator[CephWhenAsked]:
    """Give a starter of the S3 server and end what it started."""
    ceph = CephWhenAsked()
    try:
        yield ceph
    finally:
        ceph.stop()


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
