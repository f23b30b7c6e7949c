"""The look-up of a claimed job whose record in Redis may be older than what the object store has.

A Redis that has started anew may have older data: a copy of its log, or the data of a replica that lacks writes.
Until a keeper has compared all jobs with the object store, each claimed one is looked up there. So claims need not wait
for the comparison, which may take minutes after a restart that lost nothing.
"""

from __future__ import annotations

from penstock.errors import Drained
from penstock.jobs import Claim, QueueMode
from penstock.storage.journal import journal, queue_modes, usage_ledger
from penstock.storage.journal.journal import Journal
from penstock.storage.redis import queues


def catch_up(both_stores: Journal, claim: Claim) -> None:
    """Bring the record of a claimed job, and the modes of the queues, up to date; `Drained` where its queue is paused.

    Afterwards a heartbeat shows whether the attempt still holds the job. A job without manifests stays as it is, and so
    does one whose deletion is no longer stored.
    """
    both_stores.run(queue_modes.restore())
    modes = both_stores.store.run(queues.modes()) or {}
    if modes.get(claim.submission.queue) == QueueMode.PAUSED:
        raise Drained("the queue was paused, but Redis has older data")
    if claim.durable and not both_stores.run(journal.catch_up(claim.job)):
        usage_ledger.fold_all(both_stores.store, both_stores.objects, [claim.job.tenant])
