"""The catalogue, as workers told of it."""

from __future__ import annotations

from fastapi import APIRouter

from penstock.api.errors import problems
from penstock.api.schemas import ModelList
from penstock.api.services import Api
from penstock.errors import UnknownModel
from penstock.models import CatalogueEntry
from penstock.storage import records

router = APIRouter(prefix="/v1", tags=["models"], responses=problems(503))


@router.get("/models")
async def list_models(api: Api) -> ModelList:
    """List the models, by name."""
    catalogue = await api.jobs.run(records.catalogue())
    return ModelList(models=[catalogue[name] for name in sorted(catalogue)])


@router.get("/models/{name}", responses=problems(404))
async def read_model(name: str, api: Api) -> CatalogueEntry:
    """Return a model with the JSON Schema of its input and its outputs."""
    catalogue = await api.jobs.run(records.catalogue())
    if name not in catalogue:
        raise UnknownModel(f"known models: {', '.join(sorted(catalogue)) or 'none'}")
    return catalogue[name]
