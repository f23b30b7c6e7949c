"""Documents of other releases: known fields are read, the others are carried."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock import formats
from penstock.jobs import Delivery, Phase, State

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DOCUMENTS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(st.text(max_size=3), SCALARS, max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=3), SCALARS | inner, max_size=4),
    max_leaves=12,
)


@dataclass(frozen=True)
class Small:
    """A document with two fields and a carrier."""

    a: int
    b: str = ""
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)


def test_a_release_reads_the_next_format_and_runs_its_own() -> None:
    assert formats.RUNS == formats.CHAINED == formats.WRITES + 1
    assert formats.READS == formats.RUNS + 1


def test_a_document_without_a_version_has_the_first_format() -> None:
    assert formats.version_of({}) == formats.version_of({"version": ""}) == 1
    assert formats.version_of({"version": "2"}) == formats.version_of({"version": 2}) == 2


def test_only_known_fields_reach_the_value() -> None:
    assert formats.known(Small, {"a": 1, "new": 2, "extra": {"x": 1}, "version": 9}) == {"a": 1}


@given(stored=DOCUMENTS, own=DOCUMENTS)
def test_a_document_keeps_what_its_reader_did_not_know(stored: dict[str, Any], own: dict[str, Any]) -> None:
    carried = formats.carrying(formats.unknown(stored, own), own)
    assert formats.carrying(carried, own) == carried
    assert {name: carried[name] for name in stored if name not in own} == {
        name: value for name, value in stored.items() if name not in own
    }
    assert carried.keys() == stored.keys() | own.keys()


@given(stored=DOCUMENTS)
def test_a_document_that_is_known_whole_carries_nothing(stored: dict[str, Any]) -> None:
    assert formats.unknown(stored, stored) == {}
    assert formats.unknown(stored, {**stored}) == {}


def test_unknown_words_have_a_neutral_meaning() -> None:
    assert [State.read(text) for text in ("queued", "held")] == [State.QUEUED, State.OTHER]
    assert [Phase.read(text) for text in ("loading", "dreaming")] == [Phase.LOADING, Phase.WAITING]
    assert [Delivery.read(text) for text in ("none", "resting")] == [Delivery.NONE, Delivery.PENDING]
