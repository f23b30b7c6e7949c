"""vLLM's engine ends with the worker that started it, however that ends: left alone it would keep the device's memory.

The entry point `penstock` in vLLM's group `vllm.general_plugins`, which vLLM calls in each of its processes.
"""

from __future__ import annotations

import multiprocessing
import os
import threading

#: Set in a worker that starts engines, and so in their processes. Other users of this environment's vLLM lack it.
MARK = "_PENSTOCK_STARTS_VLLM"


def end_with_parent() -> None:
    """Have this process end when the worker does, if it is one that a worker's engine runs in."""
    parent = multiprocessing.parent_process()
    if parent is None or MARK not in os.environ:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="penstock-parent", daemon=True).start()
