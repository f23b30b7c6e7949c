"""The work of a plan: prompts that are left, those of a part, and units that workers share."""

from __future__ import annotations

import pytest

from penstock.processors.geo.tiling.work import Work
from tests.support.geo.in_memory import plan_of

PLAN = plan_of((100, 60), 20, halo=4)


@pytest.mark.parametrize("passes", [1, 4])
def test_every_pass_of_a_tile_is_a_prompt(passes: int) -> None:
    work, count, strips = Work(PLAN, passes=passes), PLAN.count(), PLAN.wanted_strips
    assert len(strips) > 3
    assert work.left() == (passes * count, passes * PLAN.cost())
    assert work.left(strips[1:]) == (passes * PLAN.count(strips[1:]), passes * PLAN.cost(strips[1:]))
    assert work.left(strips) == (0, 0)


def test_a_part_has_the_prompts_of_its_strips() -> None:
    work = Work(PLAN, passes=4)
    assert work.of_part(None) == work.left()[0]
    assert work.of_part(range(1, 3)) == work.left({0, *PLAN.wanted_strips[3:]})[0]


def test_units_are_strips_with_all_their_prompts_and_those_that_are_left() -> None:
    work = Work(PLAN, passes=4)
    division = work.division("digest", {1}, {"finding": "text"})
    each = work.left()[0] // len(PLAN.wanted_strips)
    assert division.digest == "digest"
    assert division.findings == {"finding": "text"}
    assert division.units == tuple((at, each, 0 if at == 1 else each) for at in PLAN.wanted_strips)
