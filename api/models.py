"""The catalogue and the queues, as workers told of them."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.schemas import ModelList, QueueView, queue_view
from penstock.api.services import Api
from penstock.errors import UnknownModel, UnknownQueue
from penstock.models import CatalogueEntry
from penstock.storage import records

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models")
async def list_models(api: Api) -> ModelList:
    """List the models, by name."""
    catalogue = await api.jobs.run(records.catalogue())
    return ModelList(models=[catalogue[name] for name in sorted(catalogue)])


@router.get("/models/{name}")
async def read_model(name: str, api: Api) -> CatalogueEntry:
    """Return a model with the JSON Schema of its input and its outputs."""
    catalogue = await api.jobs.run(records.catalogue())
    if name not in catalogue:
        raise UnknownModel(f"known models: {', '.join(sorted(catalogue)) or 'none'}")
    return catalogue[name]


@router.get("/queues/{name}")
async def read_queue(name: str, api: Api) -> QueueView:
    """Return a queue's depth and speed: the one signal that autoscaling needs."""
    stats = await api.jobs.run(records.queue_stats(name))
    if not stats.known and name not in api.settings.queues:
        raise UnknownQueue
    return queue_view(name, stats)
