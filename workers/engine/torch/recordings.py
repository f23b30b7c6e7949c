"""CUDA graphs of a network's passes: one launch instead of one from Python for each kernel.

Python needs 8.9 ms to launch a ViT-B/16 on 32 pictures, and an H100 4.7 ms to compute it; meanwhile the other threads
of the worker want the interpreter too. A pass is recorded once it has come a few times, is compared with the same pass
without a recording, and is replayed from then on (`docs/decisions/0112-performance.md`).
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from torch import Tensor

log = structlog.get_logger(__name__)

#: Makes the name and the values of an answer from a batch (N, ...) and what else the pass depends on.
Forward = Callable[[Tensor, Any], tuple[str, Tensor]]

#: A pass of a shape is recorded when it comes for this time; the first ones choose kernels and fill caches.
RECORDED_AT = 3
#: Recordings of one network: batches of one shape have up to seven sizes below 32.
MOST_RECORDINGS = 24
#: Passes that are counted: pictures of any size may come, so that the counts must not grow for ever.
_MOST_COUNTED = 1024
#: Device memory of the recordings of one network, as a share of the device's.
_MOST_SHARE = 1 / 32
#: Batches above this size are padded to a multiple of it, smaller ones to a power of two.
_SIZE_STEP = 8


@dataclass(frozen=True, slots=True)
class Recording:
    """A pass that can be replayed: it reads `batch` and writes `answer`."""

    batch: Tensor
    name: str
    answer: Tensor
    replay: Callable[[], None]


#: Records a pass on a batch whose memory stays, or raises any error. The last argument is what the pass returned.
Record = Callable[[Forward, Tensor, Any, Tensor], Recording]


class Recordings:
    """The recorded passes of one network. One thread runs passes; any thread may call `forget_all`."""

    def __init__(self, forward: Forward, record: Record, *, most: int) -> None:
        """Record passes of `forward` on batches of up to `most`."""
        self._forward, self._record, self._most = forward, record, most
        self._came: Counter[Hashable] = Counter()
        #: None: the pass cannot be recorded, and is not tried again.
        self._kept: dict[Hashable, Recording | None] = {}
        self._lock = threading.Lock()
        _all.add(self)

    def run(self, batch: Tensor, how: Hashable) -> tuple[str, Tensor]:
        """Return what `forward` returns, from a recording if there is one; valid until the next call."""
        size = padded(len(batch), self._most)
        key = (size, batch.shape[1:], how)
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                kept.batch[: len(batch)].copy_(batch)
                kept.replay()
                return kept.name, kept.answer[: len(batch)]
            answer = self._forward(batch, how)
            if len(self._came) == _MOST_COUNTED:
                self._came.clear()
            self._came[key] += 1
            if self._came[key] == RECORDED_AT and key not in self._kept and len(self._kept) < MOST_RECORDINGS:
                self._kept[key] = self._recorded(batch, size, how)
            return answer

    def forget(self) -> None:
        """Free the memory of all recordings. Passes that come again are recorded again, if they have room."""
        with self._lock:
            self._kept.clear()
            self._came.clear()

    def _recorded(self, batch: Tensor, size: int, how: Hashable) -> Recording | None:
        try:
            kept = batch.new_zeros((size, *batch.shape[1:]))
            kept[: len(batch)].copy_(batch)
            _, expected = self._forward(kept, how)
            return self._record(self._forward, kept, how, expected)
        except Exception as error:  # of any type: a network that synchronises, allocates too much, or draws numbers
            log.info("engine.pass_not_recorded", batch=size, error=str(error).partition("\n")[0])
            return None


#: The recordings of all networks of this process.
_all: weakref.WeakSet[Recordings] = weakref.WeakSet()


def forget_all() -> None:
    """Free the memory of the recordings of all networks: a pass had no room."""
    for each in list(_all):
        each.forget()


def padded(count: int, most: int) -> int:
    """Return the size of a recorded batch for so many prompts: at least `count`, and at most `most` if that is less."""
    step = _SIZE_STEP if count > _SIZE_STEP else 1 << (count - 1).bit_length()
    return max(count, min(-(-count // step) * step, most))


def recorder(device: torch.device) -> Record:
    """Return a function that records passes on a CUDA device, which share their memory.

    It raises an error for a pass with another answer than before, or with which the recordings take too much memory.
    """
    pool = torch.cuda.graph_pool_handle()
    room = torch.cuda.get_device_properties(device).total_memory * _MOST_SHARE
    taken = 0

    def record(forward: Forward, batch: Tensor, how: Any, expected: Tensor) -> Recording:
        nonlocal taken
        # A cached cast of the passes before would be freed with their block of `autocast`.
        cached = torch.is_autocast_cache_enabled()
        torch.clear_autocast_cache()
        torch.set_autocast_cache_enabled(False)
        try:
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved(device)
            graph = torch.cuda.CUDAGraph()
            # Other threads copy prompts meanwhile: only what this thread does must be fit for recording.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                name, answer = forward(batch, how)
        finally:
            torch.set_autocast_cache_enabled(cached)
        graph.replay()
        if not _agree(answer.double(), expected.double()):
            raise ValueError("the recorded pass has another answer")
        taken += max(0, torch.cuda.memory_reserved(device) - before)
        if taken > room:
            raise MemoryError(f"the recorded passes take {taken:,} bytes")
        return Recording(batch, name, answer, graph.replay)

    return record


def _agree(found: Tensor, expected: Tensor) -> bool:
    """Return True if two answers are equal but for the noise of bfloat16."""
    return torch.allclose(found, expected, rtol=0, atol=0.01 * float(expected.abs().max()), equal_nan=True)
