"""The model catalogue, as reported by the workers."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import Field

from penstock.api.auth import Caller, Principal
from penstock.api.errors import problems
from penstock.api.schemas.jobs import Outgoing, Time
from penstock.api.services import Api, Services
from penstock.errors import NotReady, UnknownModel
from penstock.models import CatalogueEntry, find, no_model
from penstock.storage.redis import catalogues, loads


class LoadFailureView(Outgoing):
    """The latest load of a model on a machine, which ended its process."""

    machine: str
    reason: str = Field(validation_alias="how", description="The end of the load, such as `was ended by SIGABRT`.")
    #: The last lines that the load wrote.
    lines: list[str]
    #: Failed loads in a row.
    failures: int = Field(validation_alias="count")
    #: Time of the failure.
    at: Time = Field(validation_alias="at_s")
    next_try_seconds: float = Field(
        validation_alias="wait_s", description="Seconds until the machine may try again; 0 if the next job tries."
    )


class ModelView(CatalogueEntry):
    """A model."""

    load_failures: tuple[LoadFailureView, ...] = Field(
        default=(),
        description="The machines on which the model's load ended its process, for keys with the scope `admin`. Other "
        "keys see the reason in `problem` or `note`.",
    )


class ModelList(Outgoing):
    """The models, sorted by name."""

    models: list[ModelView]


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
