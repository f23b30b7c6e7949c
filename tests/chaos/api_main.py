"""The test build of the API, the shipped app with failpoints: `python -m tests.chaos.api_main MODULE:FACTORY`."""

from __future__ import annotations

import sys
from importlib import import_module

from fastapi import FastAPI

from penstock.api.app import create_app, serve
from penstock.config import load_settings
from penstock.observation import log
from penstock.storage.hints import HintSender
from penstock.storage.objects.opening import open_own_store
from tests.chaos.failpoints import FailingAsyncStore, FailingObjects, Failpoints


def app() -> FastAPI:
    """Return the app on the real stores that the settings name."""
    settings = load_settings()
    log.configure(settings.log_level)
    failpoints = Failpoints.from_environment()
    jobs = FailingAsyncStore(FailingAsyncStore.open(settings.redis_address).client)
    jobs.failpoints = failpoints
    objects = FailingObjects(open_own_store(settings), failpoints)
    return create_app(settings, jobs=jobs, objects=objects, send_hint=HintSender(settings.redis_address).send)


if __name__ == "__main__":
    module, _, factory = sys.argv[1].partition(":")
    serve(getattr(import_module(module), factory)(), load_settings())
