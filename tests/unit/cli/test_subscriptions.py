"""The results of a subscription in a terminal and in a file."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from penstock.cli.subscriptions import show_results
from penstock.client.subscription_answers import PolygonChange, Subscription, SubscriptionResult

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
POLYGONS = tuple(
    PolygonChange(name=name, holds=True, m2={"gained(water, snow or ice)": 14.9e6}) for name in ("north", "south")
)
BAY = Subscription(
    raw={}, name="bay", state="active", stac="https://stac.example", model="csmask", created_at=AT,
    collection_url="https://a.b/collection.json",
    results=tuple(
        SubscriptionResult(
            item=item, collection="c", time=AT, job="j", url=f"https://a.b/{item}.json", polygons=parts,
            changed=bool(parts),
        )
        for item, parts in (("after", POLYGONS), ("before", ()))
    ),
)  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("width", [60, 80, 300])
def test_the_areas_of_a_change_are_shown_at_each_width(width: int, terminal: bool) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=terminal, color_system=None, soft_wrap=True)
    show_results(console, BAY)
    assert isinstance(console.file, StringIO)
    words = " ".join(console.file.getvalue().split())
    if terminal or width == 300:
        assert "north: gained(water, snow or ice) 14.9 km2; south: gained(water, snow or ice) 14.9 km2" in words
        assert "yes" in words
