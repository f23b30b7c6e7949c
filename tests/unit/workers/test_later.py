"""Celery, imported later, by two threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A program whose main thread imports Celery; amid that another thread sends a hint, or wants to stop.
AT_ONCE = """
import sys, threading
from penstock.config import Settings
from penstock.workers import later

failed, threads = [], []
threading.excepthook = failed.append
actions = {
    "hint": lambda: later.LaterHints(Settings(redis_url="redis://127.0.0.1:9"))._sender,
    "stop": later.stop,
    "consume": later.consumer,
}
first, second = (actions[name] for name in sys.argv[1:])

class Amid:
    def find_spec(self, name, path=None, target=None):
        if name == "celery.local" and not threads:
            threads.append(threading.Thread(target=second))
            threads[0].start()
            threads[0].join(0.5)  # it cannot end before the import has: this lets it come as far as it can
        return None

sys.meta_path.insert(0, Amid())
first()
threads[0].join()
sys.exit(str(failed[0].exc_value) if failed else 0)
"""


@pytest.mark.breadth
def test_threads_that_import_celery_at_once_get_the_whole_of_it() -> None:
    for names in (["hint", "consume"], ["consume", "hint"], ["stop", "hint"]):
        done = subprocess.run([sys.executable, "-c", AT_ONCE, *names], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (names, done.stderr)
