"""The model catalogue, as reported by the workers."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter

from penstock.api.auth import Caller, Principal
from penstock.api.errors import problems
from penstock.api.schemas.models import LoadFailureView, ModelList, ModelView
from penstock.api.services import Api, Services
from penstock.errors import NotReady, UnknownModel
from penstock.models import CatalogueEntry, find, no_model
from penstock.storage.redis import catalogues, loads

router = APIRouter(prefix="/v1", tags=["models"], responses=problems(503))


@router.get("/models")
async def list_models(api: Api, caller: Caller) -> ModelList:
    """List the models, sorted by name."""
    catalogue = await api.models.read()
    return ModelList(models=await _views(api, [catalogue[name] for name in sorted(catalogue)], caller))


@router.head("/models/{name:path}", include_in_schema=False)
@router.get("/models/{name:path}", responses=problems(404))
async def read_model(name: str, api: Api, caller: Caller) -> ModelView:
    """Return a model, by its name or an alias, with the JSON Schema of its input, its outputs and its limits.

    503 with `Retry-After` while no model is known, and while a worker checks one that was never published.
    """
    catalogue = await api.models.read(name)
    if not catalogue:
        raise NotReady("no worker has reported its models yet, and none are stored; try again in 2 s", retry_after_s=2)
    entry = find(catalogue, name)
    if entry is None:
        raise UnknownModel(no_model([name], catalogue))
    if entry.problem == catalogues.CHECKING and not entry.input_schema:
        raise NotReady(f"{entry.name} is not ready yet: {entry.problem}", retry_after_s=2)
    [view] = await _views(api, [entry], caller)
    return view


async def _views(api: Services, entries: Sequence[CatalogueEntry], caller: Principal) -> list[ModelView]:
    """Return entries as the caller may see them: the machines and lines of failed loads are for operators."""
    found = await api.jobs.run(loads.load_failures()) if caller.is_admin else ()
    return [
        ModelView.model_validate(
            {
                **{name: getattr(entry, name) for name in CatalogueEntry.model_fields},
                "load_failures": [LoadFailureView.model_validate(one) for one in found if one.model == entry.name],
            }
        )
        for entry in entries
    ]
