"""Several prompts in one message: small ones that a process makes one soon after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np

from penstock.errors import PenstockError, ProcessorFailed
from penstock.processors.base import Prompt, Value
from penstock.workers.io.channel import Channel, Disconnected, Message
from penstock.workers.io.output_groups import MAX_ARRAYS, joined, parted

#: Prompts of one message and bytes of their arrays, at most. A single prompt has a message, whatever it is.
MAX_PROMPTS, MAX_BYTES = 16, 2**20
#: Characters of a text that keeps its prompt from sharing a message.
MAX_CHARS = 256
#: Seconds for which a prompt waits for the next one, at most. The engine waits as long to fill a batch.
HOLD_S = 0.003


class PromptSender:
    """Sends the prompts of a job. What is held is sent after `HOLD_S`, also while the next prompt is being made."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._held: list[Prompt] = []
        self._bytes = 0
        #: Monotonic time at which the making of the first held prompt began.
        self._since_s = 0.0
        self._error: Exception | None = None
        #: Sends what is held too long; begins with the first prompt that is held.
        self._watch: threading.Thread | None = None
        self._making, self._ended = threading.Event(), threading.Event()

    def begin(self) -> None:
        """Note that prompts are being made from now on."""
        self._since_s = time.monotonic()
        self._making.set()

    def add(self, prompt: Prompt, *, more: bool) -> None:
        """Send a prompt and those that are held, or hold it where `more` are to be made now.

        Raises the error of this message or of one that was sent meanwhile.
        """
        size_bytes = measured(prompt.data)
        with self._lock:
            if self._held and not self._shares(prompt, size_bytes):
                self._send()
            self._held.append(prompt)
            self._bytes += size_bytes or 0
            late = time.monotonic() - self._since_s >= HOLD_S
            if not more or late or size_bytes is None or self._bytes + size_bytes > MAX_BYTES:
                self._send()
            elif self._watch is None:
                self._watch = threading.Thread(target=self._send_late, name="late-prompts", daemon=True)
                self._watch.start()

    def pause(self) -> None:
        """Send what is held; nothing is made for now. Raises as `add` does."""
        self._making.clear()
        with self._lock:
            self._send()

    def end(self) -> None:
        """Drop what is held and end the thread."""
        with self._lock:
            self._held.clear()
        self._ended.set()
        self._making.set()
        if self._watch is not None:
            self._watch.join()

    def _shares(self, prompt: Prompt, size_bytes: int | None) -> bool:
        return (
            size_bytes is not None
            and self._bytes + size_bytes <= MAX_BYTES
            and len(self._held) < MAX_PROMPTS
            and sum(len(each.data) for each in (*self._held, prompt)) <= MAX_ARRAYS
        )

    def _send(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        held, self._held, self._bytes = self._held, [], 0
        self._since_s = time.monotonic()
        if len(held) == 1:
            self._channel.send("prompt", held[0].data, cost=held[0].cost)
        elif held:
            self._channel.send("prompts", joined(held), costs=[prompt.cost for prompt in held])

    def _send_late(self) -> None:
        while self._making.wait() and not self._ended.wait(HOLD_S):
            with self._lock:
                if self._held and time.monotonic() - self._since_s >= HOLD_S:
                    try:
                        self._send()
                    except (Disconnected, PenstockError) as error:
                        self._error = error


def measured(data: Mapping[str, Value]) -> int | None:
    """Return the bytes of a prompt's arrays; None for one with long texts, or with values of any size or kind."""
    size_bytes = 0
    for value in data.values():
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            size_bytes += value.nbytes
        elif not (value is None or isinstance(value, int | float | str)) or len(str(value)) >= MAX_CHARS:
            return None
    return size_bytes


def prompts_of(message: Message) -> list[Prompt]:
    """Return the prompts of a message, none at their end; raise `ProcessorFailed` for any other message."""
    match message.kind, message.header:
        case "prompt", {"cost": int(cost)}:
            return [Prompt(message.data, cost)]
        case "prompts", {"costs": [*costs]} if costs and all(type(cost) is int for cost in costs):
            try:
                return list(map(Prompt, parted(message.data, len(costs)), costs))
            except (ValueError, IndexError):
                pass
        case "end", _:
            return []
    raise ProcessorFailed("the processor's process sent an invalid message instead of a prompt")
