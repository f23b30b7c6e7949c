"""The conditions that hold after any run of faults. Pure: a history and its leftovers in, violations out."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tests.chaos.history import TERMINAL, History, Leftovers, Received

#: The longest that the API may take, whatever happened to what it stands on.
PATIENCE_S = 5.0
#: Keys that may be left in Redis when every job is over. Everything else is a leak.
_KEPT = re.compile(
    r"penstock:(tenant:[^:]+:(job:[^:]+(:events|:deliveries|:followers)?|delivery:[^:]+|jobs|gone:[^:]+|usage:\d+|kept"
    r"|sending|answered|receiver:.+:(busy|health))"
    r"|queue:[^:]+:(speed|growth|device|workers|seen|starting|pool|dead|done:\d+|done_us|listening)|queues|finished|keeper|alive|run(:(reads|modes))?|recovering|tidied|claim:.+|bell:.+"
    r"|catalogue(:(ranks|left|living|notes))?|publishers|published:.+|workers(:seen|:starts|:(more|lines|at):.+)?|counts:(ended|tries|phases|used|lost|retried|workers)|usage:days"
    r"|swept)"
)
_CELERY = re.compile(r"_kombu\.binding.*|unacked|unacked_index|unacked_mutex|penstock\.[^:]+")
#: These must end by themselves.
_FLEETING = re.compile(
    r"penstock:(claim:.+|tenant:[^:]+:(gone:.+|sending|answered|receiver:.+)|keeper|recovering|tidied|workers:(more|lines|at):.+"
    r"|queue:[^:]+:(pool|done(:\d+|_us)))"
)
_OBJECT = re.compile(r"tenants/(?P<tenant>[^/]+)/jobs/(?P<id>[^/]+)/(?P<rest>.+)")
_DURABLE = ("request.json", "outcome.json", "cancel.json")


def check(
    history: History, webhooks: Sequence[Received], left: Leftovers, *, patience_s: float = PATIENCE_S,
    all_count: bool = True,
) -> list[str]:  # fmt: skip
    """Return every violation of the promise, as sentences; empty = the promise held.

    Without `all_count` some processes are of a release that does not count usage: then no sum may be too large.
    """
    return [
        *lost(history),
        *changed(history),
        *wrong_ends(history),
        *impatient(history, patience_s),
        *webhooks_doubled(history, webhooks),
        *webhooks_missing(history, webhooks),
        *leaked_keys(left),
        *orphans(left),
        *missing_artifacts(left),
        *wrong_usage(history, left, all_count=all_count),
    ]


def lost(history: History) -> Iterator[str]:
    """Yield accepted jobs that were never seen to end, and jobs that nobody could submit."""
    yield from (f"{job}: accepted and never seen to end" for job in sorted(history.accepted - history.over))
    yield from (f"{job}: was never accepted" for job in sorted(set(history.wanted) - history.accepted))


def changed(history: History) -> Iterator[str]:
    """Yield jobs whose terminal state or result somebody saw change."""
    for job, looks in history.looks.items():
        end = history.end(job)
        if end is None:
            continue
        for look, span in looks.items():
            if look != end and (look.over or span.last_s > looks[end].first_s):
                yield f"{job}: was {end.status} {end.result}, then {look.status} {look.result}"


def wrong_ends(history: History) -> Iterator[str]:
    """Yield jobs that ended otherwise than their input says."""
    for job, wanted in history.wanted.items():
        look = history.end(job)
        if look is None:
            continue
        output, _, code, _ = json.loads(look.result)
        if look.status not in wanted.ends or (wanted.code and look.status == "failed" and code != wanted.code):
            yield f"{job}: ended {look.status} {code}, expected {wanted.ends} {wanted.code or ''}"
        if look.status == "succeeded" and not str((output or {}).get("text")).startswith(wanted.input["text"] + ":"):
            yield f"{job}: has another job's result"


def impatient(history: History, patience_s: float) -> Iterator[str]:
    """Yield answers that took too long, and refusals for a while that do not say for how long."""
    for answer in history.answers:
        if answer.took_s > patience_s:
            yield f"{answer.what} {answer.id}: took {answer.took_s:.1f} s, status {answer.status}"
        if answer.status in (429, 503) and not answer.retry_after:
            yield f"{answer.what} {answer.id}: {answer.status} without Retry-After"
        if answer.status == 500:
            yield f"{answer.what} {answer.id}: 500 {answer.code}"


def webhooks_doubled(history: History, webhooks: Iterable[Received]) -> Iterator[str]:
    """Yield jobs whose end was told under two ids, as two different ends, or in two different bodies."""
    ids: dict[str, set[str]] = defaultdict(set)
    bodies: dict[str, set[bytes]] = defaultdict(set)
    ends: dict[str, set[str]] = defaultdict(set)
    for hook in webhooks:
        event = json.loads(hook.body)
        if event["type"].removeprefix("job.") in TERMINAL:
            job = event["data"]["id"]
            ids[job].add(hook.id)
            bodies[job].add(hook.body)
            ends[job].add(event["type"].removeprefix("job."))
    for job in ids:
        if len(ids[job]) > 1:
            yield f"{job}: its end has {len(ids[job])} webhook ids"
        if len(bodies[job]) > 1:
            yield f"{job}: its end was told in {len(bodies[job])} different bodies"
    for job, told in ends.items():
        end = history.end(job)
        if end is not None and told != {end.status}:
            yield f"{job}: is {end.status}, its webhooks said {sorted(told)}"


def webhooks_missing(history: History, webhooks: Iterable[Received]) -> Iterator[str]:
    """Yield ends of which the receiver was never told."""
    told = {json.loads(hook.body)["data"]["id"] for hook in webhooks if hook.answered == 200}
    for job in sorted(history.accepted - told):
        if history.wanted[job].webhook is not None:
            yield f"{job}: its end was never told to its webhook"


def leaked_keys(left: Leftovers) -> Iterator[str]:
    """Yield keys that should not be there when every job is over, and fleeting ones that would stay for ever."""
    for key, (kind, ttl_ms, members) in sorted(left.keys.items()):
        if not _KEPT.fullmatch(key) and not _CELERY.fullmatch(key):
            yield f"Redis: {key} ({kind}, {members} members) is left"
        elif _FLEETING.fullmatch(key) and ttl_ms == -1:
            yield f"Redis: {key} never expires"


def orphans(left: Leftovers) -> Iterator[str]:
    """Yield objects that no job names, and jobs' objects beside their visible result."""
    visible = {key for keys in left.artifacts.values() for key in keys}
    prefixes = {key.rpartition("/")[0] for key in visible}
    for key in sorted(left.objects):
        found = _OBJECT.fullmatch(key)
        if found is None or key in visible or key.rpartition("/")[0] in prefixes:
            continue
        if found["rest"] not in _DURABLE or found["id"] not in left.artifacts:
            yield f"object store: {key} is left"


def missing_artifacts(left: Leftovers) -> Iterator[str]:
    """Yield visible artifacts that are not there."""
    for job, keys in sorted(left.artifacts.items()):
        yield from (f"{job}: its visible artifact {key} is gone" for key in keys if key not in left.objects)


def wrong_usage(history: History, left: Leftovers, *, all_count: bool = True) -> Iterator[str]:
    """Yield sums of usage that differ from those of the committed outcomes, and ends that they lack."""
    for name in sorted(left.usage.keys() | left.committed.keys()):
        counted, committed = left.usage.get(name, 0), left.committed.get(name, 0)
        if counted > committed or (all_count and counted != committed):
            yield f"usage of {name[0]}, {name[1]}: {counted} is counted, {committed} was committed"
    for end in TERMINAL if all_count else ():
        seen = sum(1 for job in history.over if (look := history.end(job)) and look.status == end)
        counted = sum(n for (_, measure), n in left.usage.items() if measure.rpartition(" ")[2] == end)
        if counted < seen:
            yield f"usage: {counted} {end} jobs are counted, {seen} were seen"
