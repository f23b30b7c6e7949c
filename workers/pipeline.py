"""The steps of one claimed job: fetch media, prepare prompts, infer, finish, store artifacts, complete."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from penstock.config import Settings
from penstock.errors import (
    Canceled,
    Drained,
    Fenced,
    Interruption,
    JobGone,
    ObjectStoreUnavailable,
    PenstockError,
    ProcessorFailed,
)
from penstock.intake.guard import GuardedClient
from penstock.intake.media import fetch_for_job, readable
from penstock.intake.request_defaults import defaults_of
from penstock.intake.submissions import check_tensors
from penstock.jobs import TERMINAL, Claim, Phase, QueueMode, State
from penstock.models import (
    Model,
    media_references,
    media_to_share,
)
from penstock.observation.listening import listening
from penstock.processors.base import Divisible, Output, Prompt, finding_name
from penstock.storage.journal import journal, queue_modes, usage_ledger
from penstock.storage.journal.environments import Environments
from penstock.storage.journal.journal import Ended, Flow, Journal
from penstock.storage.journal.outputs import store_output
from penstock.storage.objects.base import ObjectStore
from penstock.storage.redis import queues, records
from penstock.storage.redis.fetch_hosts import is_on_the_web
from penstock.storage.redis.parts import Division, split
from penstock.workers.artifacts import upload
from penstock.workers.attempts import Attempt
from penstock.workers.checkpoints import StoredCheckpoints, forget_checkpoints
from penstock.workers.engine.base import Engine
from penstock.workers.engine.device_class import device_class
from penstock.workers.heartbeat import Heartbeat
from penstock.workers.job_media import HELD_BYTES, JobMedia
from penstock.workers.named_media import fetch_named
from penstock.workers.places import Places
from penstock.workers.processing import Processed, Processing, Work
from penstock.workers.provenance import Course, copied, environment, provenance
from penstock.workers.result_cache import ResultCache, fingerprint_of
from penstock.workers.retry_policy import outcome_of, to_penstock_error
from penstock.workers.scratch import ARTIFACTS, ScratchFolders
from penstock.workers.served_models import RunnableModel, ServedModels
from penstock.workers.software import software_of
from penstock.workers.splitting import JobSplit, PartLimits, Splitter
from penstock.workers.store_waits import StoreWaits

#: Seconds between two tries to report an attempt's outcome to Redis. The artifacts are stored by then.
COMPLETE_RETRY_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The services that every attempt needs, and the steps of an attempt."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    guard: GuardedClient
    processing: Processing
    engine: Engine
    heartbeat: Heartbeat
    served: ServedModels
    #: Scratch folders of attempts.
    scratch: ScratchFolders
    waits: StoreWaits
    environments: Environments = field(default_factory=Environments)
    #: The worker's slots; None = no attempt lends its slot.
    places: Places | None = None

    @property
    def journal(self) -> Journal:
        """The journal, which commits outcomes to Redis and the object store."""
        return Journal(self.store, self.objects)

    @property
    def splitter(self) -> Splitter:
        """The decision whether a job is split."""
        settings = self.settings
        limits = PartLimits(settings.scene_parts, settings.scene_part_tiles, settings.scene_sharing == "always")
        return Splitter(self.store, limits)

    @property
    def results(self) -> ResultCache:
        """The cache of results of earlier jobs."""
        return ResultCache(self.journal, self.settings.retention_s)

    def run(self, claim: Claim) -> None:
        """Run one attempt to its end. Never raises."""
        attempt = Attempt(claim, on_news=self.heartbeat.hasten)
        ids = claim.log_ids
        with (
            self.heartbeat.watching(attempt),
            structlog.contextvars.bound_contextvars(**ids),
            self.scratch.folder(claim) as folder,
        ):
            log.info("attempt.started", attempt=claim.attempt, model=claim.submission.model)
            try:
                self._run(attempt, folder)
            except Exception as error:  # whatever it is, a retry would repeat it: an expired lease would cause one
                log.exception("attempt.crashed")
                self._fail(attempt, error)

    def _run(self, attempt: Attempt, folder: Path) -> None:
        try:
            outcome = self._outcome(attempt, folder)
        except Interruption as reason:
            self._abandon(attempt, reason)
        except JobSplit as divided:
            self._split(attempt, divided.division)
        else:
            self._end(attempt, outcome)

    def _fail(self, attempt: Attempt, error: Exception) -> None:
        """End the job with the error alone, after its outcome could not be stored."""
        reason = ProcessorFailed(f"the job's result cannot be stored ({type(error).__name__})")
        try:
            self._end(attempt, records.Outcome(State.FAILED, error=reason.report(), phases=attempt.phases))
        except Exception:  # the lease expires by itself
            log.exception("attempt.not_ended")

    def _outcome(self, attempt: Attempt, folder: Path) -> records.Outcome:
        try:
            outcome = self._result(attempt, folder)
        except (Fenced, Drained, JobSplit):
            raise
        except Exception as error:  # a fault of a processor, a decoder or a network ends this attempt only
            known = to_penstock_error(error)
            if not isinstance(known, Canceled):
                log.warning("attempt.failed", code=known.code, detail=known.detail, exc_info=known is not error)
            outcome = outcome_of(known, attempt=attempt.claim.attempt, draw=random.random())  # noqa: S311
        usage = attempt.usage(outcome.artifacts, outcome.data)
        return replace(
            outcome, metrics=attempt.metrics(), progress=attempt.progress, usage=usage, phases=attempt.phases
        )

    def _result(self, attempt: Attempt, folder: Path) -> records.Outcome:
        objects = self.waits.store(attempt)
        both_stores = Journal(self.store, objects)
        if attempt.claim.crashes and both_stores.run(journal.adopt(attempt.claim.key)) is not None:
            raise Fenced("a lost attempt had already ended the job, but Redis did not record this")
        if attempt.claim.may_be_old:
            catch_up(both_stores, attempt.claim)
            self.heartbeat.beat(attempt)  # at once: the job may have ended
            attempt.check()
        runnable = self.served.runnable().get(attempt.claim.submission.model)
        if runnable is None:
            raise Drained("this worker no longer serves the model")
        # Checked again: a job may come from a drop rule, or its tenant may have lost the permission since.
        request, tenant = attempt.claim.submission.input, attempt.claim.key.tenant
        check_tensors(runnable.schema, request, tenant=tenant, settings=self.settings)
        return self._compute(attempt, runnable, folder)

    def _compute(self, attempt: Attempt, runnable: RunnableModel, folder: Path) -> records.Outcome:
        part, tenant = attempt.claim.part, attempt.claim.key.tenant
        attempt.enter(Phase.FETCHING)
        with self._beside(attempt, runnable), attempt.timed("fetch"):
            media = self._fetch(attempt, runnable, folder)
        processed = None if part else self._known(attempt, runnable, media, folder)
        if processed is None:
            attempt.enter(Phase.LOADING)
            with attempt.timed("cold_start"):
                self.engine.load(runnable.model, check=attempt.check)
            work = Work(
                runnable.model, attempt.claim.submission.input, dict(media.files), folder / ARTIFACTS, tenant,
                folder.parent, attempt.lines, media, None if part is None else (part.first, part.last),
            )  # fmt: skip
            checkpoints = self._checkpoints(attempt, work.model, folder / "checkpoints")
            processed = self._infer(attempt, work, checkpoints, media)
            if media.files.keys() != work.media.keys():
                attempt.fingerprint = None  # it says nothing about files that documents name
        attempt.check()
        attempt.enter(Phase.UPLOADING)
        with attempt.timed("upload"):
            objects, result, most = self.waits.store(attempt), processed.result, self.settings.inline_output_bytes
            artifacts = upload(objects, attempt.claim, processed.files)
            output = store_output(objects, attempt.claim, result.text, result.data, inline_bytes=most)
        made_by = None if part else self._provenance(attempt, runnable, media, processed)
        return records.Outcome(
            State.SUCCEEDED, text=result.text, data=result.data, output=output, artifacts=artifacts, provenance=made_by
        )

    def _provenance(self, attempt: Attempt, runnable: RunnableModel, media: JobMedia, made: Processed) -> str:
        """Return the provenance of a result."""
        request, schema = dict(attempt.claim.submission.input), runnable.schema
        places = {reference: place for place, reference in media_references(schema, request)}
        inputs, defaults = media.inputs(places), defaults_of(schema, request)
        if made.copied is not None:
            return copied(made.copied[1], inputs, defaults, made.copied[0])
        described = environment(runnable.facts, {**made.software, **software_of(runnable.model)})
        name = self._kept(attempt, described)
        return provenance(name, inputs, defaults, Course(attempt.claim.parts, made.resumed))

    def _kept(self, attempt: Attempt, described: Mapping[str, Any]) -> str | None:
        """Store the environment of a result and return its digest.

        Jobs that live in Redis alone do not wait for an object store that is away: their results have None.
        """
        tenant = attempt.claim.key.tenant
        if self.settings.durability == "manifest":
            return self.environments.keep(self.waits.store(attempt), tenant, described)
        try:
            return self.environments.keep(self.objects, tenant, described)
        except ObjectStoreUnavailable:
            return None

    def _known(self, attempt: Attempt, runnable: RunnableModel, media: JobMedia, folder: Path) -> Processed | None:
        """Return the result of an earlier, equal job, if the model has a cache and such a job exists.

        A job with partial media has no fingerprint of their bytes.
        """
        if not runnable.model.cache or media.partial:
            return None
        with attempt.timed("fetch"):
            attempt.fingerprint = fingerprint_of(attempt.claim, runnable, media.hashes)
            found = self.results.find(
                attempt.claim.key.tenant, attempt.fingerprint, folder / "known", check=attempt.check
            )  # fmt: skip
        attempt.count({"cached": int(found is not None)})
        return found

    def _beside(self, attempt: Attempt, runnable: RunnableModel) -> AbstractContextManager[None]:
        """Lend the attempt's slot while it fetches media from the web.

        A job without hosts has no such media, or was accepted by a release that does not store them: it keeps its slot.
        """
        if self.places is None or not attempt.claim.fetch_hosts:
            return nullcontext()
        found = media_references(runnable.schema, attempt.claim.submission.input)
        on_the_web = any(is_on_the_web(reference) for _, reference in found)
        return self.places.beside(attempt.claim, attempt.check, attempt.wait_for_slot, on_the_web=on_the_web)

    def _fetch(self, attempt: Attempt, runnable: RunnableModel, folder: Path) -> JobMedia:
        request = dict(attempt.claim.submission.input)
        get = partial(
            fetch_for_job, store=self.waits.store(attempt), tenant=attempt.claim.key.tenant, settings=self.settings,
            guard=self.guard, limit_bytes=runnable.model.limits.max_bytes or self.settings.max_upload_bytes,
            check=attempt.check, upstreams=attempt.claim.upstreams,
        )  # fmt: skip
        # An attempt that joins parts needs few rows, or none. The cache needs the bytes of whole files.
        joins = attempt.claim.parts > 0 and not runnable.model.cache
        media = JobMedia(
            get, folder, attempt.fetched, by_range=attempt.claim.part is not None or joins,
            left_bytes=HELD_BYTES, hashed=attempt.claim.part is None,
            order=partial(readable, tenant=attempt.claim.key.tenant, settings=self.settings),
        )  # fmt: skip
        undecided = frozenset() if runnable.model.cache else media_to_share(runnable.schema, request)
        if undecided and not self.splitter.may_split(attempt.claim):
            undecided = frozenset()
        fetch_named(media, runnable.schema, request, undecided=undecided, check=attempt.check)
        return media

    def _checkpoints(self, attempt: Attempt, model: Model, folder: Path) -> StoredCheckpoints:
        def on_news(count: int) -> None:
            attempt.saved(count)
            if count:
                self.heartbeat.beat(attempt)  # at once: a stored checkpoint restarts the count of the job's crashes

        return StoredCheckpoints(
            self.objects, attempt.claim.job, folder, on_news, self.waits.store(attempt), device_class(model)
        )

    def _infer(self, attempt: Attempt, work: Work, checkpoints: StoredCheckpoints, media: JobMedia) -> Processed:
        attempt.enter(Phase.PREPROCESSING)
        with ExitStack() as stack:
            with attempt.timed("preprocess"):
                opened = self.processing.open(
                    work, check=attempt.check, say=attempt.say, checkpoints=checkpoints, show=attempt.show
                )
                session = stack.enter_context(opened)
            prepared = session.prepared
            if not prepared.repeatable:
                attempt.fingerprint = None
            total = None if prepared.count is None else prepared.done + prepared.count
            attempt.plan(prepared.done, total, prepared.unit, steps=prepared.steps)
            self._decide_split(attempt.claim, work.model, prepared.division, checkpoints)
            with attempt.timed("fetch"):
                media.complete()
            prompts = _timed_prompts(attempt, prepared.prompts)
            begun = time.monotonic()
            outputs = self.engine.run(
                work.model, prompts, check=attempt.check, cost=prepared.cost, on_batch=attempt.batched,
                on_device=attempt.took_device, ready=session.ready,
            )  # fmt: skip
            outputs = stack.enter_context(closing(outputs))
            processed = session.finish(_counted_outputs(attempt, outputs, prepared.done))
            processed = replace(processed, resumed=prepared.done)
        self.heartbeat.send_news(attempt)
        waited_s = attempt.seconds_of("inference")
        attempt.add_seconds("postprocess", max(0.0, time.monotonic() - begun - waited_s))
        return processed

    def _decide_split(self, claim: Claim, model: Model, work: Divisible | None, checkpoints: StoredCheckpoints) -> None:
        """Raise `JobSplit` if workers share the job, and keep what this attempt found out for the one that joins."""
        try:
            self.splitter.decide(claim, model, work)
        except JobSplit:
            for digest, text in work.findings.items() if work is not None else ():
                checkpoints.keep(finding_name(digest), text)
            raise

    def _split(self, attempt: Attempt, division: Division) -> None:
        """End an attempt whose job goes on in parts. Without a response its lease expires, and the next one divides."""
        command = split(attempt.claim, division, attempt.progress, attempt.usage(()), attempt.phases)
        self.heartbeat.send_lines(attempt, last=True)
        try:
            ended = self._commit(attempt, lambda: journal.split(command, attempt.claim))
        except Interruption as reason:
            log.warning("attempt.not_split", reason=reason.code)
        else:
            log.info("attempt.split", parts=len(division.ranges), kind=division.kind, answer=ended.answer)

    def _end(self, attempt: Attempt, outcome: records.Outcome) -> None:
        """Commit the outcome in both stores, retrying until they respond, and delete artifacts that stay invisible.

        Only the response to this call shows whose result is visible. Without a response the artifacts stay, since the
        call may have arrived; the keeper deletes artifacts that no job names.
        """
        self.heartbeat.send_lines(attempt, last=True)
        try:
            ended = self._commit(attempt, lambda: journal.complete(attempt.claim, outcome))
        except Interruption as reason:
            log.warning("attempt.outcome_unknown", state=outcome.state.value, reason=reason.code)
            return
        log.info("attempt.ended", state=outcome.state.value, answer=ended.answer, visible=ended.visible)
        if not ended.visible:
            self._delete_artifacts(attempt.claim)
        elif attempt.fingerprint is not None:
            self.results.store_result(attempt.claim.key, attempt.fingerprint)
        if attempt.has_saved and outcome.state in TERMINAL and ended.answer != "fenced" and not attempt.claim.part:
            forget_checkpoints(self.objects, attempt.claim.key)

    def _commit(self, attempt: Attempt, end: Callable[[], Flow[Ended]]) -> Ended:
        """End the attempt, retrying until both stores respond; `Fenced` or `Drained` if this takes too long."""
        with self.waits.wait(attempt) as wait:
            while True:
                lost = attempt.lost
                ended = self._try(end())
                if isinstance(ended, Ended):
                    return ended
                pause_s = wait.failed(ended) if isinstance(ended, ObjectStoreUnavailable) else COMPLETE_RETRY_S
                if lost:
                    raise Fenced
                if self.heartbeat.wait_for_drain(pause_s):
                    raise Drained

    def _try(self, end: Flow[Ended]) -> Ended | PenstockError:
        try:
            return self.journal.run(end)
        except JobGone:
            return Ended("fenced", visible=False)
        except PenstockError as error:
            log.warning("attempt.not_committed", code=error.code)
            return error

    def _abandon(self, attempt: Attempt, reason: Interruption) -> None:
        log.info("attempt.abandoned", reason=reason.code)
        self._delete_artifacts(attempt.claim)
        if isinstance(reason, Drained):
            self.heartbeat.send_lines(attempt, last=True)
            try:
                self.journal.run(journal.release(attempt.claim, attempt.phases))
            except PenstockError:
                log.warning("release.failed")  # the lease expires by itself

    def _delete_artifacts(self, claim: Claim) -> None:
        try:
            self.objects.delete_prefix(claim.prefix)
        except ObjectStoreUnavailable:
            log.warning("artifacts.not_deleted", prefix=claim.prefix)


def catch_up(both_stores: Journal, claim: Claim) -> None:
    """Bring the record of a claimed job, and the modes of the queues, up to date; `Drained` where its queue is paused.

    A Redis that has started anew may have older data: a copy of its log, or the data of a replica that lacks writes.
    Until a keeper has compared all jobs with the object store, which may take minutes, each claimed one is looked up
    there. Afterwards a heartbeat shows whether the attempt still holds the job. A job without manifests stays as it is,
    and so does one whose deletion is no longer stored.
    """
    both_stores.run(queue_modes.restore())
    modes = both_stores.store.run(queues.modes()) or {}
    if modes.get(claim.submission.queue) == QueueMode.PAUSED:
        raise Drained("the queue was paused, but Redis has older data")
    if claim.durable and not both_stores.run(journal.catch_up(claim.job)):
        usage_ledger.fold_all(both_stores.store, both_stores.objects, [claim.job.tenant])


def _timed_prompts(attempt: Attempt, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
    """Yield prompts with their tenant, measure the time to make them, and close `prompts` at the end."""
    try:
        while True:
            with attempt.timed("preprocess"):
                prompt = next(prompts, None)
            if prompt is None:
                return
            attempt.gave(prompt)
            attempt.enter(Phase.INFERRING)  # with the first prompt, which may have to wait for the device
            yield replace(prompt, tenant=attempt.claim.key.tenant)
    finally:
        close = getattr(prompts, "close", None)
        if close is not None:
            close()


def _counted_outputs(attempt: Attempt, outputs: Iterator[Output], done: int) -> Iterator[Output]:
    """Yield outputs, count them from `done` on, and measure the time spent waiting for them."""
    while True:
        with attempt.timed("inference"), listening(attempt.lines.hear_runner):
            output = next(outputs, None)
        if output is None:
            attempt.enter(Phase.POSTPROCESSING)
            return
        if not output.partial:
            done += 1
            attempt.advance(done)
            attempt.received(output)
        yield output
