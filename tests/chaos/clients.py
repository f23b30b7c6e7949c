"""Clients as they should be: they name their jobs, repeat until they are answered, and look again and again."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import httpx2

from tests.chaos.history import Answer, History, Look, Wanted
from tests.chaos.receiver import Receiver

#: Errors after which a client repeats a request; everything else is a definite refusal.
AGAIN = frozenset({0, 409, 429, 500, 502, 503, 504})
#: A request is given up after this long: longer than the API may take, so that a hang is seen as one.
TIMEOUT_S = 15.0
LOOK_EVERY_S = 0.3
#: So that looking costs the service no more than a share, however many jobs there are.
JOBS_A_SECOND = 4000


def submission(wanted: Wanted) -> dict[str, Any]:
    """Return the body of a job's submission."""
    body: dict[str, Any] = {"model": wanted.model, "input": dict(wanted.input), "priority": wanted.priority}
    if wanted.after:
        body["after"] = list(wanted.after)
    if wanted.webhook is not None:
        body["webhook"] = {"url": wanted.webhook}
    return body


def pause_s(status: int) -> float:
    """Return the seconds before a submission is repeated: fewer than the API asks for, because the test is short."""
    return 0.05 if status == 0 else 0.2


class Client:
    """One client with a connection of its own, writing down everything in the history."""

    def __init__(
        self, base_url: str, history: History, *, forgotten_model: bool = False, key: str | None = None
    ) -> None:
        """`key` is an API key, where the service asks for one."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._http = httpx2.Client(base_url=base_url, timeout=TIMEOUT_S, headers=headers)
        self._history = history
        #: Redis was emptied, and no worker has told the API of its model yet: worth another try.
        self._again = AGAIN | {422} if forgotten_model else AGAIN

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def submit(self, wanted: Wanted, *, until: float) -> bool:
        """Submit a job under its own id until it is accepted; False when the time is over."""
        body = submission(wanted)
        while time.monotonic() < until:
            answer, job = self.ask("submit", wanted.id, "PUT", f"/v1/jobs/{wanted.id}", body)
            if job is not None:
                self._history.accepted.add(wanted.id)
                return True
            if answer.status not in self._again:
                raise AssertionError(f"submit {wanted.id} was refused for good: {answer}")
            threading.Event().wait(pause_s(answer.status))
        return False

    def cancel(self, job_id: str, *, until: float) -> bool:
        """Ask for a job's end until the service took note; False when the time is over."""
        while time.monotonic() < until:
            if self.ask("cancel", job_id, "POST", f"/v1/jobs/{job_id}/cancel")[1] is not None:
                return True
            threading.Event().wait(0.05)
        return False

    def ask(
        self, what: str, job_id: str, method: str, path: str, body: Any = None
    ) -> tuple[Answer, dict[str, Any] | None]:
        """Send a request; return its answer and, of a 2xx, the JSON."""
        began, at = time.monotonic(), time.time()
        status, after, found, code = 0, None, None, None
        with suppress(httpx2.TransportError):
            response = self._http.request(method, path, json=body)
            status, after = response.status_code, response.headers.get("retry-after")
            found = response.json() if response.content else {}
            code = found.get("code")
        ended = time.monotonic()
        answer = Answer(at, what, job_id, status, ended - began, after, code)
        self._history.answers.append(answer)
        if not 200 <= status < 300 or found is None:
            return answer, None
        for job in found.get("jobs", [found] if "status" in found else []):
            self._history.saw(job["id"], Look.at(job), began_s=began, ended_s=ended)
        return answer, found

    def look_at_all(self) -> bool:
        """Look at every job through the list; False when a page was not answered."""
        cursor = None
        while True:
            path = "/v1/jobs?limit=200" + (f"&cursor={cursor}" if cursor else "")
            _, page = self.ask("list", "", "GET", path)
            if page is None:
                return False
            cursor = page["next_cursor"]
            if cursor is None:
                return True


def submit_all(
    base_url: str, history: History, jobs: Sequence[Wanted], *, threads: int, until: float, **options: Any
) -> list[threading.Thread]:
    """Start client threads that share the jobs; return the threads, which end when all were accepted."""
    history.want(jobs)

    def work(share: Sequence[Wanted]) -> None:
        client = Client(base_url, history, **options)
        for job in share:
            client.submit(job, until=until)
        client.close()

    started = [threading.Thread(target=work, args=(jobs[n::threads],), name=f"client-{n}") for n in range(threads)]
    for thread in started:
        thread.start()
    return started


def watch_until_over(
    base_url: str, history: History, *, until: float, over: Callable[[], bool] = lambda: True, key: str | None = None
) -> bool:
    """Look at all jobs again and again until every accepted one ended and `over()`, then once more; False if never."""
    client = Client(base_url, history, key=key)
    try:
        while time.monotonic() < until:
            done = over()
            if client.look_at_all() and done and not live(history):
                return client.look_at_all()
            threading.Event().wait(
                LOOK_EVERY_S + len(history.wanted) / JOBS_A_SECOND
            )  # a client polls: that is what is tested
        return False
    finally:
        client.close()


def live(history: History) -> set[str]:
    """Return the accepted jobs that nobody has seen end yet."""
    return history.accepted - history.over


def jobs(
    count: int,
    receiver: Receiver | None = None,
    *,
    webhook_every: int = 5,
    **input: Any,  # noqa: A002
) -> list[Wanted]:
    """Return jobs that end well, every fifth with a webhook."""
    return [
        Wanted(
            str(uuid.uuid4()),
            {"text": f"job {number}", **input},
            webhook=receiver.url if receiver is not None and number % webhook_every == 0 else None,
        )
        for number in range(count)
    ]


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads."""
    for thread in threads:
        thread.join()
