"""The test build of the keeper: the shipped duties on stores with failpoints."""

from __future__ import annotations

import sys

from penstock.config import Settings, load_settings
from penstock.observation.log import configure
from penstock.storage.objects.opening import open_own_store
from penstock.workers.keeper.keeper import keep
from tests.chaos.failpoints import FailingObjects, FailingStore, Failpoints


def main(settings: Settings) -> int:
    """Run a keeper until SIGTERM; return the exit code."""
    configure(settings.log_level)
    failpoints = Failpoints.from_environment()
    store = FailingStore(FailingStore.open(settings.redis_address).client)
    store.failpoints = failpoints
    keep(settings, store, FailingObjects(open_own_store(settings), failpoints))
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(load_settings()))
