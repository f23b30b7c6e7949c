"""The only sender of hints. A hint is a Celery message that says: work may be waiting in this queue.

It carries nothing else. The record in Redis is the truth, workers also look without a hint, and the keeper sends
hints for whatever waits: a lost one costs latency, never a job.
"""

from __future__ import annotations

from typing import Any

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

#: The task that hints name; `penstock.workers.tasks` holds it.
TASK = "penstock.work"
#: For a broker that does not answer.
TIMEOUT_S = 2

log = structlog.get_logger(__name__)


def visibility_timeout_s(longest_s: float) -> int:
    """Return for how long a hint may be held before it is shown again, where the longest job may run `longest_s`.

    A hint holds its slot as long as jobs wait, so it outlives the longest of them several times over.
    """
    return max(6 * 3600, round(4 * longest_s))


def celery_queue(queue: str) -> str:
    """Return the name of the list in Redis that holds a queue's hints."""
    return f"penstock.{queue}"


def celery_settings(redis_url: str, *, visibility_timeout_s: int) -> dict[str, Any]:
    """Return Celery's settings; `docs/decisions/0002-hints.md` says why each stands as it does."""
    return {
        "broker_url": redis_url,
        "accept_content": ["json"],
        "task_serializer": "json",
        "result_backend": None,
        "task_ignore_result": True,
        "task_acks_late": True,
        "task_reject_on_worker_lost": True,
        "task_publish_retry": False,
        "worker_prefetch_multiplier": 1,
        "worker_enable_remote_control": False,
        "worker_send_task_events": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_hijack_root_logger": False,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_transport_options": {
            "visibility_timeout": visibility_timeout_s,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "unacked_restore_interval": 10,
            "global_keyprefix": "",
        },
    }


class HintSender:
    """Sends hints, best effort: it never raises, and never waits longer than its connection's timeouts."""

    def __init__(self, redis_url: str) -> None:
        self._redis = redis.Redis.from_url(redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._app = Celery("penstock-hints", set_as_current=False)
        self._app.conf.update(celery_settings(redis_url, visibility_timeout_s=3600))
        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        self._app.conf.broker_transport_options |= timeouts

    def send(self, queue: str) -> bool:
        """See to it that a hint waits in the queue; False when the broker does not answer.

        One says as much as many: whoever takes it claims until nothing waits. To look first costs a tenth of sending.
        """
        name = celery_queue(queue)
        try:
            if not self._redis.exists(name):
                self._app.send_task(TASK, args=(queue,), queue=name, ignore_result=True)
        except (OperationalError, redis.RedisError, OSError) as error:
            log.warning("hint.lost", queue=queue, error=type(error).__name__)
            return False
        return True
