"""End of vLLM's processes with the worker that started them: an orphaned engine would keep the device's memory.

`end_with_parent` is the entry point `penstock` of vLLM's group `vllm.general_plugins`, called in each vLLM process.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable

#: Environment variable of workers that start engines, inherited by the engines; other programs with vLLM lack it.
MARK = "_PENSTOCK_STARTS_VLLM"
#: Environment variable of `vllm serve` that a worker started: the worker's process id.
WORKER = "_PENSTOCK_WORKER_OF_VLLM"


def end_with_parent() -> None:
    """End this process when its worker ends, if a worker's engine or server runs in it."""
    parent = multiprocessing.parent_process()
    if parent is not None and MARK in os.environ:
        _end_after(parent.join)
    elif WORKER in os.environ:
        _end_after(lambda: _wait_for(int(os.environ[WORKER])))


def _wait_for(pid: int) -> None:
    import psutil

    try:
        psutil.Process(pid).wait()
    except psutil.NoSuchProcess:  # it has ended already
        return


def _end_after(wait: Callable[[], object]) -> None:
    def end() -> None:
        wait()
        os._exit(1)

    threading.Thread(target=end, name="penstock-parent", daemon=True).start()
