"""Hints, which this module alone sends: Celery messages that jobs may wait in a queue.

A hint carries nothing else. The record in Redis is authoritative, workers also poll without hints, and the keeper sends
hints for waiting jobs: a lost hint costs latency, never a job.
"""

from __future__ import annotations

from typing import Any

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError

from penstock.storage.redis.address import connect, parse_sentinels

#: Name of the task in hints; `penstock.workers.consumer` defines it.
TASK = "penstock.work"
#: Seconds to wait for a broker that does not respond.
TIMEOUT_S = 2

log = structlog.get_logger(__name__)


def visibility_timeout_s(longest_s: float) -> int:
    """Return the seconds after which an unfinished hint is delivered again, where the longest job runs `longest_s`.

    A hint occupies its slot as long as jobs wait: several times longer than the longest job.
    """
    return max(6 * 3600, round(4 * longest_s))


def celery_queue(queue: str) -> str:
    """Return the name of the list in Redis that holds a queue's hints."""
    return f"penstock.{queue}"


def celery_settings(redis_url: str, *, visibility_timeout_s: int) -> dict[str, Any]:
    """Return Celery's settings; `docs/decisions/0002-hints.md` gives the reason for each."""
    sentinels = parse_sentinels(redis_url)
    return {
        "broker_url": redis_url if sentinels is None else sentinels.celery_url,
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
        "broker_channel_error_retry": True,
        "broker_transport_options": {
            "visibility_timeout": visibility_timeout_s,
            "socket_timeout": 10,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "unacked_restore_interval": 10,
            "global_keyprefix": "",
        }
        | ({} if sentinels is None else sentinels.celery_options),
    }


class HintSender:
    """Sends hints, best effort: it never raises, and waits no longer than its connection's timeouts."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._app = Celery("penstock-hints", set_as_current=False)
        self._app.conf.update(celery_settings(redis_url, visibility_timeout_s=3600))
        timeouts = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        self._app.conf.broker_transport_options |= timeouts

    def send(self, queue: str) -> bool:
        """Make sure that a hint waits in the queue; return False if the broker does not respond.

        One hint is enough: its worker claims until no job waits. The check before sending costs a tenth of sending.
        """
        name = celery_queue(queue)
        try:
            if not self._redis.exists(name):
                self._app.send_task(TASK, args=(queue,), queue=name, ignore_result=True)
        except (OperationalError, redis.RedisError, OSError) as error:
            log.warning("hint.lost", queue=queue, error=type(error).__name__)
            return False
        return True
