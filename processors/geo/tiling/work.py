"""The work of a plan: how many prompts it takes, and how they can be shared among workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from penstock.processors.base import Divisible
from penstock.processors.geo.read.scene_area import SceneArea
from penstock.processors.geo.tiling.plan import Plan


@dataclass(frozen=True, slots=True)
class Work:
    """The prompts of a plan, without those of tiles beside the area."""

    plan: Plan
    area: SceneArea | None = None
    #: Prompts of each tile.
    passes: int = 1

    def left(self, skipped: Collection[int] = ()) -> tuple[int, int]:
        """Return the number of prompts and their cost in input pixels, without those of the `skipped` strips."""
        plan, area = self.plan, self.area
        if area is None:
            return self.passes * plan.count(skipped), self.passes * plan.cost(skipped)
        tiles = [tile for strip in plan.strips(skipped) for tile in strip.tiles if area.touches(tile.core)]
        return self.passes * len(tiles), self.passes * sum(tile.window.height * tile.window.width for tile in tiles)

    def of_part(self, part: range | None) -> int:
        """Return the number of prompts of these strips; of all strips for None."""
        beside = () if part is None else {index for index in self.plan.wanted_strips if index not in part}
        return self.left(beside)[0]

    def division(self, digest: str, restored: Collection[int], findings: Mapping[str, str]) -> Divisible:
        """Return the strips as units that can be shared, each with its prompts, and with those that are left of it."""
        area, passes, wanted = self.area, self.passes, self.plan.wanted_strips
        prompts = {
            strip.index: passes * sum(area is None or area.touches(tile.core) for tile in strip.tiles)
            for strip in self.plan.strips()
        }
        units = ((index, prompts[index], 0 if index in restored else prompts[index]) for index in wanted)
        return Divisible(digest, tuple(units), findings)
