"""Notes are collected for the job in work, in threads of its context too, and nowhere else."""

from __future__ import annotations

import threading
from contextvars import copy_context

from penstock.processors.notes import note, noting
from penstock.workers.processing import with_notes


def test_a_note_is_kept_once_and_only_inside() -> None:
    notes: list[str] = []
    note("before")
    with noting(notes):
        note("inside")
        note("inside")
    note("after")
    assert notes == ["inside"]


def test_a_thread_in_the_same_context_adds_to_the_same_notes() -> None:
    notes: list[str] = []
    with noting(notes):
        thread = threading.Thread(target=copy_context().run, args=(note, "from a thread"))
        thread.start()
        thread.join()
    assert notes == ["from a thread"]


def test_notes_join_those_of_the_result_and_replace_nothing() -> None:
    assert with_notes({"a": 1}, ["n"]) == {"a": 1, "notes": ["n"]}
    assert with_notes({"notes": ["own"]}, ["n"]) == {"notes": ["own", "n"]}
    assert with_notes({"notes": "a text"}, ["n"]) == {"notes": "a text"}
    assert with_notes(None, ["n"]) == {"notes": ["n"]}
