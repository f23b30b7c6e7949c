"""A dry run of a submission on both stores."""

from __future__ import annotations

from penstock.errors import UnknownUpstream
from penstock.jobs import Submission
from penstock.storage.journal.journal import Flow, missing_of
from penstock.storage.redis.dry_runs import Forecast, dry_run
from penstock.storage.redis.records import QueueLimits


def forecast(submission: Submission, limits: QueueLimits) -> Flow[Forecast]:
    """Return what a dry run found; raise the errors that a submit would raise."""
    command = dry_run(submission, limits)
    try:
        found: Forecast = yield command
    except UnknownUpstream:  # Redis may have lost it
        if (yield from missing_of(submission.key.tenant, submission.after)):
            raise
        found = yield command
    return found
