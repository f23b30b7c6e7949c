"""Grouping tokens into words: by spaces, by characters where there are none, and punctuation at its word."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.processors.speech.words import words_of


def decode(tokens: Sequence[int]) -> str:
    """Decode tokens as bytes."""
    return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        (" Go forward ten metres.", "en", [" Go", " forward", " ten", " metres."]),
        (" Käse, bitte!", "de", [" Käse,", " bitte!"]),
        (' He said "no" (twice).', "en", [" He", " said", ' "no"', " (twice)."]),
        ("一天", "zh", ["一", "天"]),
        ("一天", "en", ["一天"]),
        ("", "en", []),
    ],
)
def test_words_are_what_people_take_for_words(text: str, language: str, words: list[str]) -> None:
    assert [word for word, _ in words_of(list(text.encode()), decode, language)] == words


@given(tokens=st.lists(st.integers(0, 255), max_size=30), language=st.sampled_from(["en", "zh"]))
def test_every_token_is_of_one_word(tokens: list[int], language: str) -> None:
    found = words_of(tokens, decode, language)
    assert [place for _, places in found for place in places] == list(range(len(tokens)))
