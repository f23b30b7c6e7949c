"""From a request to a submission: the model is known, its input fits, its media are there and allowed."""

from __future__ import annotations

from penstock.api.media import check_media
from penstock.api.services import Services
from penstock.jobs import JobKey, Submission
from penstock.requests import JobRequest
from penstock.storage import catalogues
from penstock.storage.submissions import Origin, check_input, check_tensors, check_webhook, servable, submission_to


async def submission(api: Services, key: JobKey, wanted: JobRequest, *, fingerprint: str, origin: Origin) -> Submission:
    """Return the checked request as a submission.

    Raises `ModelNotServed`, `ModelUnavailable`, `InvalidRequest` or an `InputError`; their issues point into the body.
    """
    catalogue = await api.jobs.run(catalogues.catalogue())
    entry = servable(wanted.model, catalogue)
    check_input(entry, wanted.input)
    check_tensors(entry.input_schema, wanted.input, tenant=key.tenant, settings=api.settings)
    check_webhook(wanted, api.settings)
    await check_media(api, key.tenant, entry, wanted.input)
    return submission_to(entry, key, wanted, fingerprint=fingerprint, origin=origin)
