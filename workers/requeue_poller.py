"""The requeue poller: each worker finds lost leases and waiting jobs, so that neither waits for a keeper or a hint.

The keeper has both duties too. A job whose worker died is back in its queue about a second after its lease ended while
any keeper or worker lives, and a free slot claims it within a second, also when the hint for it was lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

import structlog

from penstock.errors import JobStoreError
from penstock.storage.redis import queues, records

#: Seconds between two polls: half of the time within which a free slot claims a waiting job.
EVERY_S = 0.5

log = structlog.get_logger(__name__)


class RequeuePoller:
    """Polls every `EVERY_S` seconds, in a thread of its own. It logs nothing while Redis does not answer."""

    def __init__(self, store: records.Runs, served: Collection[str], notice: Callable[[str], None]) -> None:
        """`notice` is called with each of the `served` queues that has waiting jobs; it must not block."""
        self._store = store
        self._served = served
        self._notice = notice
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_end, name="requeue-poller", daemon=True)

    def start(self) -> None:
        """Start polling."""
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._ended.set()
        self._thread.join()

    def poll(self) -> None:
        """Poll once: requeue jobs whose lease has ended, and call `notice` for the queues with waiting jobs."""
        swept = self._store.run(records.sweep())
        if swept.requeued:
            log.info("requeue_poller.requeued", requeued=swept.requeued)
        for queue in self._store.run(queues.backlog()):
            if queue in self._served:
                self._notice(queue)

    def _poll_until_end(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self.poll()
            except JobStoreError:  # claims and heartbeats log it
                continue
            except Exception:  # the next poll may succeed, and the thread must not end
                log.exception("requeue_poller.failed")
