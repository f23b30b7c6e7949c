"""The table of transitions: each one is written out here by hand, so that a slip in the table shows."""

from __future__ import annotations

import itertools

import pytest

from docs.generator.states import TRANSITIONS, Event
from penstock.jobs import TERMINAL, State

EXPECTED = {
    "other": {},  # nothing here changes a job in a state that only newer releases know
    "reserved": {"confirm": "queued", "wait": "delayed", "cancel": "canceled"},
    "queued": {"claim": "running", "cancel": "canceled", "expire": "expired"},
    "delayed": {
        "due": "queued",
        "follow": "queued",
        "upstream_failed": "failed",
        "cancel": "canceled",
        "expire": "expired",
    },
    "running": {
        "succeed": "succeeded",
        "fail": "failed",
        "retry": "delayed",
        "split": "delayed",
        "release": "queued",
        "lease_lost": "queued",
        "poison": "failed",
        "timeout": "failed",
        "cancel": "running",
        "canceled": "canceled",
    },
    "succeeded": {},
    "failed": {},
    "canceled": {},
    "expired": {},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_of_state_and_event_leads_where_the_design_says(state: State, event: Event) -> None:
    expected = EXPECTED[state.value].get(event.value)
    assert TRANSITIONS.get((state, event)) == (State(expected) if expected else None)


def test_nothing_leaves_a_terminal_state() -> None:
    assert {state.value for state in TERMINAL} == {"succeeded", "failed", "canceled", "expired"}
    assert not [(s, e) for s, e in itertools.product(TERMINAL, Event) if (s, e) in TRANSITIONS]
