"""Figure of a job's states, and the table of their transitions, which the Lua scripts of the store obey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

from docs.generator.comments import Undocumented
from docs.generator.svg import BLUE, GREEN, GREY, PALE, box, drawing, path, text
from penstock.jobs import TERMINAL, State


class Event(StrEnum):
    """An event that changes a job."""

    #: The job's manifest is stored.
    CONFIRM = "confirm"
    #: The same, and jobs that the job waits for have not succeeded yet.
    WAIT = "wait"
    #: The jobs that the job waited for have succeeded.
    FOLLOW = "follow"
    #: A job that the job waited for failed, expired or was deleted. Where it was canceled, the job is too.
    UPSTREAM_FAILED = "upstream_failed"
    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    #: An attempt ended with a retryable error.
    RETRY = "retry"
    #: A delayed job's time has come.
    DUE = "due"
    #: A draining worker returned the job to the queue.
    RELEASE = "release"
    #: The lease expired without a report from the worker.
    LEASE_LOST = "lease_lost"
    #: The lease was lost for the last allowed time.
    POISON = "poison"
    #: The execution timeout passed.
    TIMEOUT = "timeout"
    #: The queue TTL passed.
    EXPIRE = "expire"
    #: A cancel was requested. A running job stays running until its worker stops or its lease expires.
    CANCEL = "cancel"
    #: The worker of a canceled job stopped, or its lease expired.
    CANCELED = "canceled"
    #: An attempt made parts of the job, which are computed elsewhere.
    SPLIT = "split"


#: The only transitions between states. All others are impossible.
TRANSITIONS: Mapping[tuple[State, Event], State] = MappingProxyType(
    {
        (State.RESERVED, Event.CONFIRM): State.QUEUED,
        (State.RESERVED, Event.WAIT): State.DELAYED,
        (State.RESERVED, Event.CANCEL): State.CANCELED,
        (State.QUEUED, Event.CLAIM): State.RUNNING,
        (State.QUEUED, Event.CANCEL): State.CANCELED,
        (State.QUEUED, Event.EXPIRE): State.EXPIRED,
        (State.DELAYED, Event.DUE): State.QUEUED,
        (State.DELAYED, Event.FOLLOW): State.QUEUED,
        (State.DELAYED, Event.UPSTREAM_FAILED): State.FAILED,
        (State.DELAYED, Event.CANCEL): State.CANCELED,
        (State.DELAYED, Event.EXPIRE): State.EXPIRED,
        (State.RUNNING, Event.SUCCEED): State.SUCCEEDED,
        (State.RUNNING, Event.FAIL): State.FAILED,
        (State.RUNNING, Event.RETRY): State.DELAYED,
        (State.RUNNING, Event.SPLIT): State.DELAYED,
        (State.RUNNING, Event.RELEASE): State.QUEUED,
        (State.RUNNING, Event.LEASE_LOST): State.QUEUED,
        (State.RUNNING, Event.POISON): State.FAILED,
        (State.RUNNING, Event.TIMEOUT): State.FAILED,
        (State.RUNNING, Event.CANCEL): State.RUNNING,
        (State.RUNNING, Event.CANCELED): State.CANCELED,
    }
)

_WIDTH, _HEIGHT = 110, 36
_KNOWN = tuple(state for state in State if state is not State.OTHER)
#: Centre of each state's box.
_PLACES: Mapping[State, tuple[float, float]] = MappingProxyType(
    {
        State.RESERVED: (70, 70), State.QUEUED: (250, 70), State.RUNNING: (460, 70), State.DELAYED: (385, 220),
        State.SUCCEEDED: (690, 70), State.FAILED: (690, 150), State.CANCELED: (690, 330), State.EXPIRED: (250, 330),
    }
)  # fmt: skip
#: Line between each pair of states, and position and alignment of its label.
_LINES: Mapping[tuple[State, State], tuple[str, float, float, str]] = MappingProxyType(
    {
        (State.RESERVED, State.QUEUED): ("M125 70H193", 159, 60, "middle"),
        (State.RESERVED, State.DELAYED): ("M100 88V232H328", 160, 226, "middle"),
        (State.DELAYED, State.FAILED): ("M440 212H660V170", 560, 206, "middle"),
        (State.RESERVED, State.CANCELED): ("M70 88V390H690V350", 80, 380, "start"),
        (State.QUEUED, State.RUNNING): ("M305 76H403", 352, 94, "middle"),
        (State.RUNNING, State.QUEUED): ("M430 52V26H270V50", 350, 20, "middle"),
        (State.QUEUED, State.CANCELED): ("M290 88V268H660V310", 570, 260, "middle"),
        (State.QUEUED, State.EXPIRED): ("M230 88V310", 222, 200, "end"),
        (State.DELAYED, State.QUEUED): ("M330 220H265V90", 298, 212, "middle"),
        (State.DELAYED, State.CANCELED): ("M410 238V330H633", 530, 322, "middle"),
        (State.DELAYED, State.EXPIRED): ("M350 238V330H307", 358, 312, "start"),
        (State.RUNNING, State.DELAYED): ("M455 88V220H442", 449, 180, "end"),
        (State.RUNNING, State.SUCCEEDED): ("M515 70H633", 574, 60, "middle"),
        (State.RUNNING, State.FAILED): ("M495 88V150H633", 500, 142, "start"),
        (State.RUNNING, State.CANCELED): ("M475 88V240H730V310", 570, 232, "middle"),
        (State.RUNNING, State.RUNNING): ("M470 52V26H500V50", 508, 36, "start"),
    }
)


def figure() -> str:
    """Return the figure as SVG. Raises `Undocumented` for a state or transition without a position."""
    transitions: dict[tuple[State, State], list[str]] = {}
    for (before, event), after in TRANSITIONS.items():
        transitions.setdefault((before, after), []).append(event.value.replace("_", " "))
    if lost := (set(transitions) - set(_LINES)) | {(state, state) for state in set(_KNOWN) - set(_PLACES)}:
        raise Undocumented(f"the figure of states lacks {sorted(lost)}")
    marks = [mark for transition, events in transitions.items() for mark in _transition(transition, events)]
    return drawing(770, 408, "The states of a job", *marks, *(_state(state) for state in _KNOWN))


def _transition(transition: tuple[State, State], events: Iterable[str]) -> list[str]:
    line, x, y, at = _LINES[transition]
    return [path(line, tip=True), text(x, y, ", ".join(events), at=at, size=13)]


def _state(state: State) -> str:
    x, y = _PLACES[state]
    colour = GREEN if state in TERMINAL else GREY if state is State.RESERVED else BLUE
    frame = box(x - _WIDTH / 2, y - _HEIGHT / 2, _WIDTH, _HEIGHT, fill=PALE, line=colour, round_=8, thick=2)
    return frame + text(x, y + 5, state.value)
