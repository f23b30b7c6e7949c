"""Scenes as catalogues and programs publish them: no silent error, no refusal of right input, and the table says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.geo.catalogues import SHAPES, Case, cases, records, table

PAGE = Path(__file__).parents[2] / "docs/explanation/radiometry.md"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    return cases(tmp_path_factory.mktemp("catalogues"))


def test_no_shape_is_read_wrongly_without_a_word(found: list[Case]) -> None:
    assert [(one.shape.what, one.record, one.error) for one in found if one.silent] == []


def test_no_shape_that_can_be_read_is_refused_or_read_wrongly(found: list[Case]) -> None:
    assert [(one.shape.what, one.record, one.text) for one in found if one.wrongly_refused] == []


def test_a_scene_that_does_not_say_enough_is_noted_or_refused_with_a_line_to_add(found: list[Case]) -> None:
    for one in found:
        if not one.shape.complete:
            assert one.outcome != "read", one.shape.what
            assert '"radiometry": {"scale": ' in one.text


def test_both_units_of_reflectance_have_the_same_outcomes(found: list[Case]) -> None:
    for shape in SHAPES:
        assert len({one.outcome for one in found if one.shape is shape}) == 1, shape.what


def test_every_shape_names_its_source() -> None:
    assert all("/" in shape.source for shape in SHAPES)
    assert set(records()) == {"csmask", "prithvi-embeddings"}


def test_the_page_has_the_table(found: list[Case]) -> None:
    assert table(found) in PAGE.read_text(encoding="utf-8"), "run `python -m tests.support.geo.catalogues`"
