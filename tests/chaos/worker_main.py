"""The test build of the worker's entry point: the shipped parts, the chaos model, and failpoints at the seams."""

from __future__ import annotations

import resource
import sys

from penstock.catalogue.functions import function_records
from penstock.catalogue.records import Catalogue
from penstock.config import Settings, load_settings
from penstock.processors.functions.processor import Function
from penstock.processors.registry import Registry
from penstock.storage.objects.opening import open_own_store
from penstock.workers import app
from penstock.workers.processing import InThread
from tests.chaos.echo import MODEL, Chaos
from tests.chaos.failpoints import FailingObjects, FailingStore, Failpoints


def main(settings: Settings, worker_id: str | None = None) -> int:
    """Run a worker until SIGTERM, or until it leaves by itself; return the exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # jobs that abort leave no dumps
    failpoints = Failpoints.from_environment()
    store = FailingStore(FailingStore.open(settings.redis_address).client)
    store.failpoints = failpoints
    functions = [record for file in settings.models for record in function_records(file)]
    return app.run(
        settings,
        store,
        catalogue=Catalogue({model.name: model for model in (MODEL, *functions)}),
        # In the worker itself: a job that aborts is to take its worker down.
        processing=InThread(Registry().register("chaos", Chaos).register("function", Function)),
        objects=FailingObjects(open_own_store(settings), failpoints),
        worker_id=worker_id,
    )


if __name__ == "__main__":
    sys.exit(main(load_settings(), *sys.argv[1:2]))
