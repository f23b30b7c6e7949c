"""All scenarios by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.chaos.arena import Summary
from tests.chaos.on_processes import cancels, poison, rolling_restarts, worker_kills, zombies
from tests.chaos.on_redis import bad_network, flushall, redis_full, valkey_kills
from tests.chaos.on_surroundings import bad_receivers, disk_full, one_key, s3_trouble
from tests.chaos.run import Run

SCENARIOS: Mapping[str, Callable[[Run], Summary]] = MappingProxyType(
    {
        scenario.__name__: scenario
        for scenario in (
            worker_kills, valkey_kills, bad_network, zombies, cancels, poison, one_key, s3_trouble, bad_receivers,
            flushall, rolling_restarts, disk_full, redis_full,
        )
    }
)  # fmt: skip
