"""End of vLLM's engine with the worker that started it: an orphaned engine would keep the device's memory.

`end_with_parent` is the entry point `penstock` of vLLM's group `vllm.general_plugins`, called in each vLLM process.
"""

from __future__ import annotations

import multiprocessing
import os
import threading

#: Environment variable of workers that start engines, inherited by the engines; other programs with vLLM lack it.
MARK = "_PENSTOCK_STARTS_VLLM"


def end_with_parent() -> None:
    """End this process when its worker ends, if a worker's engine runs in it."""
    parent = multiprocessing.parent_process()
    if parent is None or MARK not in os.environ:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="penstock-parent", daemon=True).start()
