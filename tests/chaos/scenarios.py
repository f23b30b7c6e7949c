"""All scenarios by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tests.chaos.arena import Summary
from tests.chaos.on_catalogues import subscriptions
from tests.chaos.on_chains import chains
from tests.chaos.on_fleet import comings_and_goings
from tests.chaos.on_functions import model_processes
from tests.chaos.on_parts import split_scenes
from tests.chaos.on_processes import cancels, poison, worker_kills
from tests.chaos.on_redis import bad_network, failovers, flushall, redis_full, valkey_hangs, valkey_kills
from tests.chaos.on_stops import rolling_restarts, zombies
from tests.chaos.on_surroundings import bad_receivers, disk_full, flood, one_key, s3_trouble, store_away
from tests.chaos.on_web import slow_servers
from tests.chaos.run import Run

SCENARIOS: Mapping[str, Callable[[Run], Summary]] = MappingProxyType(
    {
        scenario.__name__: scenario
        for scenario in (
            worker_kills, valkey_kills, valkey_hangs, failovers, bad_network, zombies, cancels, poison, one_key, flood,
            s3_trouble, store_away, bad_receivers, flushall, rolling_restarts, disk_full, redis_full,
            comings_and_goings, split_scenes, slow_servers, model_processes,
            subscriptions, chains,
        )
    }
)  # fmt: skip
