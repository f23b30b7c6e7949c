"""A small cut of `tests.chaos.two_tenants`: a flood is refused politely, and a small tenant gets through beside it."""

from __future__ import annotations

import sys

import pytest

from tests.chaos.two_tenants import report, run

pytestmark = pytest.mark.breadth

#: Jobs so long that the flood meets its limit on any machine.
POSTS, LIMIT, TAKES_S = 303, 20, 2.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flood_is_told_to_come_back_and_a_small_tenant_gets_through() -> None:
    found = run(posts=POSTS, seconds=3, takes_s=TAKES_S, max_tenant_jobs=LIMIT)
    sys.stdout.write(report(found))

    assert found.alone.statuses == {202: 3}
    assert len(found.beside_waits_s) == len(found.beside.accepted) > 0
    assert found.flood.statuses.keys() <= {202, 429, 503}
    assert found.flood.statuses[429] > 0
    assert found.flood.impatient == found.beside.impatient == 0
    assert sum(found.flood.statuses.values()) == POSTS - 3
