"""The table of names, catalogues and records in `scenes.md` is what is computed, and no band is in a wrong place."""

from __future__ import annotations

from tests.support.geo.names import NEEDS, PAGE, on_the_page, outcomes, table

#: Names that cannot be told apart without the sensor, or are not understood.
UNCLEAR = {
    "HLS L30, no sensor named (`B7` to `B1`)",
    "`Band 7` to `Band 2` of Landsat 8",
    "MODIS, VIIRS (`SWIR1` to `SWIR3`, the first at 1240 nm)",
    "words unknown",
}


def test_no_band_is_in_a_wrong_place_and_only_unclear_names_are_refused() -> None:
    found = outcomes()
    assert [(case.provider, case.shape, each) for case, each in found if "wrong" in each.values()] == []
    assert {case.shape for case, each in found if "refused" in each.values()} == UNCLEAR


def test_records_of_prithvi_agree() -> None:
    records = [name for name in NEEDS if name.startswith("prithvi-")]
    for case, each in outcomes():
        assert len({each[name] for name in records}) == 1, case.shape


def test_the_page_has_the_table() -> None:
    assert on_the_page(PAGE.read_text("utf-8")) == table(outcomes()), "run python -m tests.support.geo.names --write"
