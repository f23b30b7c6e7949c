"""Cells in a simulation: a hash of the tenant's name against a table of tenants, as the rule that chooses a cell.

    python -m benchmarks.cells [--seed 1] [--tenants 2000] [--cells 16] [--days 30]

A cell is one Redis with its API, keepers, workers and prefix of the bucket; a tenant lives in one cell. Tenants' rates
follow a Pareto law (exponent 1.2), add up to 10^8 jobs a day, and change by a random factor each day; one tenant in a
hundred leaves each day, and a new one comes. Three rules place them:

- `hash`: rendezvous hashing, the cell with the highest hash of tenant and cell.
- `table`: a new tenant goes to the cell with the least load. Nobody moves.
- `table, moves`: as well, each night tenants move from cells with over 1.15 times the mean to the emptiest one.

`docs/explanation/scale.md` says what a move and a lost cell cost.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from statistics import fmean

JOBS_A_DAY = 1e8
EXPONENT = 1.2
#: Standard deviation of the logarithm of a day's factor: 10 % more or less.
CHANGE = 0.1
LEAVE = 0.01
#: Load of a cell, as a multiple of the mean, above which tenants move.
FULL = 1.15

#: Tenant -> jobs a day.
Rates = Mapping[str, float]
#: Tenant -> cell.
Places = Mapping[str, int]


def hashed(tenant: str, cells: int) -> int:
    """Return the cell of a tenant by rendezvous hashing: with a further cell, only those that it wins change theirs.

    D. G. Thaler and C. V. Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    return max(range(cells), key=lambda cell: blake2b(f"{tenant} {cell}".encode(), digest_size=8).digest())


def loads(rates: Rates, places: Places, cells: int) -> list[float]:
    """Return the jobs a day of each cell."""
    found = [0.0] * cells
    for tenant, rate in rates.items():
        found[places[tenant]] += rate
    return found


def balanced(rates: Rates, places: Places, cells: int, full: float = FULL) -> dict[str, int]:
    """Return the places after moves that leave no cell above `full` times the mean, where moves can do that.

    From the fullest cell the largest tenant moves that leaves the emptiest cell below the fullest one's load before. A
    tenant that is larger than a cell's share stays alone in the end.
    """
    found, load = dict(places), loads(rates, places, cells)
    limit = full * fmean(load)
    while (fullest := max(load)) > limit:
        source, target = load.index(fullest), load.index(min(load))
        fitting = [each for each, cell in found.items() if cell == source and load[target] + rates[each] < fullest]
        if not fitting:
            break
        moved = max(fitting, key=lambda each: (rates[each], each))
        found[moved] = target
        load[source] -= rates[moved]
        load[target] += rates[moved]
    return found


def moved_share(rates: Rates, before: Places, after: Places) -> float:
    """Return the share of all jobs whose tenants are in another cell than before."""
    total = sum(rates.values())
    return sum(rate for tenant, rate in rates.items() if before.get(tenant, after[tenant]) != after[tenant]) / total


@dataclass
class World:
    """The tenants, who are the same for each rule."""

    tenants: int
    draws: random.Random
    rates: dict[str, float] = field(default_factory=dict)
    came: int = 0

    def __post_init__(self) -> None:
        while len(self.rates) < self.tenants:
            self._come()

    def pass_day(self) -> None:
        """Let some leave, as many come, and all rates change."""
        for tenant in [each for each in self.rates if self.draws.random() < LEAVE]:
            del self.rates[tenant]
        while len(self.rates) < self.tenants:
            self._come()
        for tenant in self.rates:
            self.rates[tenant] *= math.exp(self.draws.gauss(0, CHANGE))

    def daily(self) -> dict[str, float]:
        """Return the jobs a day of each tenant, `JOBS_A_DAY` together."""
        total = sum(self.rates.values())
        return {tenant: JOBS_A_DAY * rate / total for tenant, rate in self.rates.items()}

    def _come(self) -> None:
        self.rates[f"tenant-{self.came}"] = self.draws.paretovariate(EXPONENT)
        self.came += 1


@dataclass
class Rule:
    """A rule with the places that it has chosen and what it has cost."""

    name: str
    places: dict[str, int] = field(default_factory=dict)
    #: Load of the fullest cell as a multiple of the mean, for each day.
    fullest: list[float] = field(default_factory=list)
    #: Share of all jobs whose tenants moved, for each night.
    moved: list[float] = field(default_factory=list)

    def place(self, rates: Rates, cells: int) -> None:
        """Choose cells for new tenants."""
        self.places = {tenant: cell for tenant, cell in self.places.items() if tenant in rates}
        for tenant in rates:
            if tenant not in self.places:
                known = {each: rates[each] for each in self.places}
                load = loads(known, self.places, cells)
                self.places[tenant] = hashed(tenant, cells) if self.name == "hash" else load.index(min(load))

    def move(self, rates: Rates, cells: int) -> float:
        """Move tenants where the rule does so; return the share of jobs."""
        if self.name == "hash":
            after = {tenant: hashed(tenant, cells) for tenant in rates}
        else:
            after = balanced(rates, self.places, cells) if self.name.endswith("moves") else self.places
        share, self.places = moved_share(rates, self.places, after), dict(after)
        return share


def simulate(seed: int, tenants: int, cells: int, days: int) -> tuple[list[Rule], World]:
    """Return the rules after these days."""
    world = World(tenants, random.Random(seed))  # noqa: S311  (a simulation)
    rules = [Rule(name) for name in ("hash", "table", "table, moves")]
    for _ in range(days):
        rates = world.daily()
        for rule in rules:
            rule.place(rates, cells)
            load = loads(rates, rule.places, cells)
            rule.fullest.append(max(load) / fmean(load))
            rule.moved.append(rule.move(rates, cells))
        world.pass_day()
    return rules, world


def _row(rule: Rule, rates: Rates, cells: int) -> str:
    rule.place(rates, cells)
    load = loads(rates, rule.places, cells)
    in_cell = [sum(place == cell for place in rule.places.values()) for cell in range(cells)]
    worst = load.index(max(load))
    added = Rule(rule.name, dict(rule.places)).move(rates, cells + 1)
    return (
        f"| {rule.name} | {fmean(rule.fullest):.2f} | {max(rule.fullest):.2f} | {fmean(rule.moved):.2%} | {added:.1%} "
        f"| {max(load) / sum(load):.1%}, {in_cell[worst] / len(rates):.1%} |\n"
    )


def run(seed: int, tenants: int, cells: int, days: int) -> None:
    """Print the table's lines."""
    rules, world = simulate(seed, tenants, cells, days)
    rates = world.daily()
    largest: Sequence[float] = sorted(rates.values(), reverse=True)[:3]
    shares = ", ".join(f"{rate * cells / JOBS_A_DAY:.2f}" for rate in largest)
    sys.stdout.write(f"The largest tenants take {shares} of a cell's mean load.\n")
    for rule in rules:
        sys.stdout.write(_row(rule, rates, cells))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tenants", type=int, default=2000)
    parser.add_argument("--cells", type=int, default=16)
    parser.add_argument("--days", type=int, default=30)
    given = parser.parse_args()
    run(given.seed, given.tenants, given.cells, given.days)
