"""A keeper of batches in a process of its own, to be killed: `python -m tests.support.keeper_process DEATH`.

It dies by SIGKILL before or after the nth call of a script or of a put: DEATH is `run:NAME:n` or `put:PART-OF-KEY:n`,
or `never`. Then it works until its standard input ends, and says the peak of its resident memory in kilobytes.

`python -m tests.support.keeper_process each` reads deaths from its standard input, one a line. For each it forks a
keeper, which spares the seconds of the imports, and writes the exit code when that has died.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config import load_settings
from penstock.observation.log import configure
from penstock.storage.hints import HintSender
from penstock.storage.objects.base import ObjectInfo
from penstock.storage.objects.opening import open_store
from penstock.storage.redis import records
from penstock.workers.keeper.batch_completion import Completion
from penstock.workers.keeper.batch_expansion import Expansion


@dataclass
class Death:
    """Comes at the nth time that something with a name happens."""

    name: str
    left: int
    lock: threading.Lock = field(default_factory=threading.Lock)

    def pass_by(self, kind: str, name: str) -> None:
        """Die, if it is time."""
        wanted, _, part = self.name.partition(":")
        if wanted == kind and (part == name if kind == "run" else part in name):
            with self.lock:
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def mortal(store: Any, objects: Any, death: Death) -> tuple[Any, Any]:
    """Return the stores with a death around each command and each put."""

    class Store:
        def run(self, command: records.Command[Any]) -> Any:
            result = store.run(command)
            death.pass_by("run", command.script)
            return result

    class Objects:
        def __getattr__(self, name: str) -> Any:
            return getattr(objects, name)

        def put_bytes(self, key: str, data: bytes, **options: Any) -> ObjectInfo:
            info: ObjectInfo = objects.put_bytes(key, data, **options)
            death.pass_by("put", key)
            return info

        def put_file(self, key: str, path: Path, **options: Any) -> ObjectInfo:
            info: ObjectInfo = objects.put_file(key, path, **options)
            death.pass_by("put", key)
            return info

    return Store(), Objects()


def peak_kb(process: int | str = "self") -> int:
    """Return the peak of a program's memory: `ru_maxrss` would count the test run that it was forked from."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(row for row in status.splitlines() if row.startswith("VmHWM")).split()[1])


def main(kind: str) -> None:
    """Keep batches until standard input ends."""
    configure("warning")
    settings = load_settings()
    what, _, count = kind.rpartition(":")
    death = Death(what, int(count)) if what else Death("", 0)
    store, objects = mortal(
        records.JobStore.open(settings.redis_address), open_store(settings.store_url, settings), death
    )
    steps = (
        Expansion(settings, store, objects, HintSender(settings.redis_address)).step,
        Completion(settings, store, objects).step,
    )
    ended = threading.Event()

    def loop(step: Any) -> None:
        while not ended.wait(0.05):
            step()

    threads = [threading.Thread(target=loop, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{peak_kb()}\n")


def fork_each() -> None:
    """Fork a keeper for each line of standard input, and write the exit code of each when it has died."""
    for death in sys.stdin:
        if (child := os.fork()) == 0:
            main(death.strip())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    fork_each() if sys.argv[1] == "each" else main(sys.argv[1])
