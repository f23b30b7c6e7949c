"""Conditions on the change between two results."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest
from penstock.intake.change_condition import Condition, Quantity, Term, parse_condition

GAINED = Quantity("gained", ("water",))
LOST = Quantity("lost", ("water", "snow or ice"))


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("gained(water) > 2 km2", Condition(((Term(GAINED, ">", 2e6),),))),
        (
            "gained( water )>=0.5ha ignoring cloud, cloud  shadow",
            Condition(((Term(GAINED, ">=", 5000),),), ("cloud", "cloud shadow")),
        ),
        (
            "gained(water) > 1 m2 and lost(water, snow or ice) < 3 ha or area(water) > 9 km2",
            Condition(
                (
                    (Term(GAINED, ">", 1), Term(LOST, "<", 3e4)),
                    (Term(Quantity("area", ("water",)), ">", 9e6),),
                )
            ),
        ),
    ],
)
def test_a_condition_is_read(text: str, condition: Condition) -> None:
    assert parse_condition(text) == condition


@pytest.mark.parametrize(
    "text",
    [
        "", "gained(water)", "gained(water) > 2", "gained(water) > -2 km2", "gained() > 2 km2", "gained(a,) > 2 km2",
        "grown(water) > 2 km2", "gained(water) > 2 km2 but lost(water) < 1 ha", "gained(water) > 2 km2 and",
        "gained(water) > 2 km2 ignoring", "gained(water) > 2 km2; drop", "gained(water) > 2 km2 " * 50,
    ],
)  # fmt: skip
def test_another_text_is_refused_with_a_pointer(text: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        parse_condition(text)
    assert [issue.pointer for issue in error.value.errors] == ["/condition"]


def test_alternatives_hold_alone_and_their_terms_together() -> None:
    condition = parse_condition("gained(water) > 2 km2 and lost(water) < 1 ha or lost(water) > 5 km2")
    gained, lost = condition.quantities
    assert condition.compares
    for km2_gained, km2_lost, holds in ((3, 0, True), (3, 1, False), (2, 0, False), (0, 6, True)):
        assert condition.holds({gained: km2_gained * 1e6, lost: km2_lost * 1e6}) is holds
    assert not parse_condition("area(water) > 1 m2").compares
