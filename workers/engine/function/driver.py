"""A driver: the one thread that owns a model's process, hands it work, takes its messages and starts it anew."""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog

from penstock.errors import ModelUnavailable, PenstockError, ProcessorFailed, ServiceError
from penstock.functions.wire import Closed, WireError
from penstock.workers.engine.function.process import ModelProcess

#: Seconds between two looks at the process.
LOOK_S = 1.0
#: Seconds that work may go on after all of its jobs were canceled, and that a process gets to end.
GRACE_S = 5.0

log = structlog.get_logger(__name__)


class Driver:
    """The thread of a model's process. A runner derives from it and says what the process gets and what it answers."""

    def __init__(self, name: str, start: Callable[[], ModelProcess]) -> None:
        """Name the model; `begin_driving` starts its process."""
        self.name = name
        self._start = start
        self._closing = False
        self._poking = threading.Lock()
        self._signal_read, self._signal = os.pipe()
        os.set_blocking(self._signal_read, False)
        os.set_blocking(self._signal, False)
        self._loaded = queue.SimpleQueue[ServiceError | None]()
        self._driver = threading.Thread(target=self._drive, name=f"model-{name}", daemon=True)

    def begin_driving(self) -> None:
        """Start the process and wait until the model is loaded; raise `ModelUnavailable` or an error of the device."""
        self._driver.start()
        if (failure := self._loaded.get()) is not None:
            raise failure

    @property
    def is_driven(self) -> bool:
        """False once the driver has ended: nothing is answered any more."""
        return self._driver.is_alive()

    def require_driver(self) -> None:
        """Raise `ProcessorFailed` if the driver has ended."""
        if not self.is_driven:
            raise self._undriven()

    def poke(self) -> None:
        """Wake the driver."""
        with self._poking, suppress(OSError):  # it is poked already, or closed
            os.write(self._signal, b".")

    def close(self) -> None:
        """End the process."""
        self._closing = True
        self.poke()
        self._driver.join(GRACE_S)

    # A runner's side, called by the driver only

    @property
    def pause_s(self) -> float:
        """The longest wait for a message, in seconds."""
        return LOOK_S

    def has_work(self) -> bool:
        """Return True if a process is needed."""
        raise NotImplementedError

    def began(self, process: ModelProcess, ready: Mapping[str, Any]) -> None:
        """Take the message `ready` of a process that has loaded the model."""

    def send(self, process: ModelProcess) -> None:
        """Send the process what it can take now."""
        raise NotImplementedError

    def take(self, message: Mapping[str, Any], process: ModelProcess) -> None:
        """Take a message; an error of its fields breaks the protocol."""
        raise NotImplementedError

    def turned(self) -> None:
        """Do what is to be done after each turn."""

    def look(self, process: ModelProcess) -> None:
        """Look at the process, about once a second."""

    def ended(self, how: str) -> None:
        """Decide what becomes of the work of a process that has ended."""
        raise NotImplementedError

    def fail_all(self, error: PenstockError) -> None:
        """Fail all work."""
        raise NotImplementedError

    # The driver's own

    def _drive(self) -> None:
        """Start the process and drive it: the kernel ends a process with the thread that started it."""
        looked, process = 0.0, None
        try:
            process = self._started(self._loaded.put)
            if process is None:
                return
            self._loaded.put(None)
            while not self._closing:
                if process is None and self.has_work():
                    process = self._started(self.fail_all)
                if process is not None:
                    process = self._work(process)
                if process is not None or not self.has_work():
                    self._wait(process)
                if process is not None and time.monotonic() - looked > LOOK_S:
                    looked = time.monotonic()
                    self.look(process)
                self.turned()
        except BaseException:
            log.exception("model.driver_failed", model=self.name)
            self._loaded.put(ModelUnavailable(self._undriven().detail))
            self.fail_all(self._undriven())
        finally:
            if process is not None:
                process.kill("")
                process.end()
            self.fail_all(ModelUnavailable(f"the model {self.name!r} was unloaded"))
            with self._poking:
                os.close(self._signal)
                self._signal = -1
            os.close(self._signal_read)

    def _undriven(self) -> ProcessorFailed:
        return ProcessorFailed(f"the model {self.name!r} failed: its process could not be driven")

    def _wait(self, process: ModelProcess | None) -> None:
        files: list[Any] = [self._signal_read] + ([] if process is None else process.files)
        select.select(files, [], [], self.pause_s)
        try:
            os.read(self._signal_read, 4096)
        except BlockingIOError:
            return

    def _started(self, failed: Callable[[ServiceError], None]) -> ModelProcess | None:
        """Start the process and load the model; after a call of `failed` with the reason, return None."""
        try:
            process = self._start()
            self.began(process, process.wait_ready(lambda: self._closing))
        except ServiceError as error:
            failed(error)
            return None
        return process

    def _work(self, process: ModelProcess) -> ModelProcess | None:
        """Send work and take messages; return None after the process's end."""
        try:
            self.send(process)
            while select.select([process.wire], [], [], 0)[0]:
                self._take_checked(process.wire.receive(), process)
                self.send(process)
            process.drain()
        except (Closed, WireError) as error:
            if isinstance(error, WireError):
                process.kill(f"broke the protocol: {error}")
            how = process.end()
            log.warning("model.process_ended", model=self.name, pid=process.pid, how=how)
            self.ended(how)
            return None
        return process

    def _take_checked(self, message: Mapping[str, Any], process: ModelProcess) -> None:
        """Take a message; raise `WireError` for one without what its kind needs."""
        try:
            self.take(message, process)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise WireError(f"a message `{message['kind']}` that is not complete") from error
