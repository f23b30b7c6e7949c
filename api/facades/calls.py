"""A call of a facade: the job it becomes, waited for, and canceled when the client leaves.

A job whose request had an `Idempotency-Key` goes on without its client: the same request finds it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import Depends, Header, Request

from penstock.api import jobs
from penstock.api.auth import Admission, Caller
from penstock.api.body import read_json
from penstock.api.errors import error_of
from penstock.api.facades.abilities import Ability, able
from penstock.api.services import Api, Services
from penstock.api.tracing import traceparent
from penstock.documents import fingerprint
from penstock.errors import ClientLeft, NotReady, StateConflict, Unauthorized, WaitOver
from penstock.jobs import Job, State
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest
from penstock.storage import catalogues, journal
from penstock.storage.submissions import Origin

T = TypeVar("T")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A request to a facade, and what its route works with."""

    request: Request
    api: Services
    caller: Admission
    idempotency_key: str | None

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.caller.tenant

    @property
    def origin(self) -> Origin:
        """What its headers say of where it comes from."""
        return Origin(traceparent(self.request.headers), self.idempotency_key)

    async def body(self) -> Any:
        """Return the JSON that was sent; raises what `read_json` does."""
        return await read_json(self.request, settings=self.api.settings)

    async def model(self, name: str, ability: Ability) -> CatalogueEntry:
        """Return the model that is asked for; raises what `able` does."""
        catalogue = await self.api.jobs.run(catalogues.catalogue())
        return able(catalogue, name, ability)

    async def submit(self, body: Any, wanted: JobRequest) -> Job:
        """Make the call a job. `body` is what was sent: another one under the same key is refused."""
        key = jobs.new_key(self.tenant, self.idempotency_key)
        mark = fingerprint({"path": self.request.url.path, "body": body})
        repeatable = self.idempotency_key is not None
        return (await jobs.accept(self.api, key, wanted, mark, repeatable=repeatable, origin=self.origin)).job

    async def ended(self, job: Job) -> Job:
        """Return the job when it is over, or as it is when `facade_wait_s` is.

        Raises `ClientLeft`, and `Unauthorized` when the API key ended meanwhile.
        """
        return await self.unless_left(job, self._over(job))

    async def succeeded(self, job: Job) -> Job:
        """Return the job when it has its result.

        Raises the job's own error, `StateConflict` where somebody canceled it, `WaitOver` where it is not over in time,
        and what `ended` does.
        """
        return require_success(await self.ended(job))

    async def unless_left(self, job: Job, work: Awaitable[T]) -> T:
        """Return what `work` gives; when the client leaves before, end the job and raise `ClientLeft`."""
        working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(self._left())
        try:
            await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        except asyncio.CancelledError as error:  # the server stops, and its patience with us is over
            raise NotReady("the service is stopping", retry_after_s=1) from error
        finally:
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
        await self.give_up(job)
        raise ClientLeft

    async def give_up(self, job: Job) -> None:
        """End the job of a client that left, unless it may come back for it."""
        if self.idempotency_key is None:
            log.info("call.left", job=str(job.key))
            await self.api.journal.run(journal.cancel(job.key))

    async def _over(self, job: Job) -> Job:
        ends = time.monotonic() + self.api.settings.facade_wait_s
        while not job.status.terminal and (left := ends - time.monotonic()) > 0:
            if not await self.caller.lasts(self.api):
                raise Unauthorized("the API key is not valid any more")
            job = await jobs.wait_for_end(self.api, job.key, left)
        return job

    async def _left(self) -> None:
        while (await self.request.receive())["type"] != "http.disconnect":
            pass


async def _call(
    request: Request, api: Api, caller: Caller, idempotency_key: Annotated[str | None, Header()] = None
) -> Call:
    return Call(request, api, caller, idempotency_key)


TheCall = Annotated[Call, Depends(_call)]


def require_success(job: Job) -> Job:
    """Return a job that has its result; raise why it has none: its own error, `StateConflict` or `WaitOver`."""
    if job.state is State.SUCCEEDED:
        return job
    if not job.status.terminal:
        raise WaitOver(f"the job {job.key.id} is not over yet and goes on: GET /v1/jobs/{job.key.id}")
    if job.error is None:
        raise StateConflict(f"the job {job.key.id} was {job.status}")
    raise error_of(job.error)
