"""Dry runs: the checks of a submission, without a job, and what the job is expected to take."""

from __future__ import annotations

from fastapi import Request, Response

from penstock.api.body import read_model, require_type
from penstock.api.connection import turn
from penstock.api.schemas.estimates import EstimateView, IntervalView, PriceView
from penstock.api.services import Services
from penstock.api.submissions import examine_large, submission
from penstock.config import Settings
from penstock.intake.submissions import Origin
from penstock.jobs import JobKey, Submission
from penstock.requests import JobRequest
from penstock.storage.journal.dry_runs import forecast
from penstock.storage.redis.dry_runs import Forecast


async def dry_run(request: Request, api: Services, key: JobKey) -> Response:
    """Return the estimate of a submission; raise the errors that the submission would raise. `key` names no job."""
    require_type(request.headers.get("content-type", ""), "application/json")
    body = await read_model(request, api, JobRequest)
    examination = await examine_large(request, api, key, body.value)
    async with turn(request, api.concurrency, key.tenant):
        checked = await submission(
            api, key, body.value, fingerprint=body.fingerprint, origin=Origin(), examination=examination, dry=True
        )
        found = await api.journal.run(forecast(checked, api.limits))
    return Response(estimate_view(checked, found, api.settings).model_dump_json(), media_type="application/json")


def estimate_view(checked: Submission, found: Forecast, settings: Settings) -> EstimateView:
    """Return the public view of a dry run, with a price where the settings have one."""
    device_s, price = found.device_s, None
    if device_s is not None and settings.price_per_device_s is not None:
        low, high = (round(each * settings.price_per_device_s, 6) for each in device_s)
        price = PriceView(low=low, high=high, currency=settings.currency)
    return EstimateView(
        model=checked.model,
        queue=checked.queue,
        media_bytes=checked.media_bytes,
        device_seconds=None if device_s is None else IntervalView(low=device_s[0], high=device_s[1]),
        wait_seconds=found.wait_s,
        price=price,
        model_problem=found.model_problem,
    )
