"""One claimed job from its references to its visible result: fetch, prepare, infer, finish, store, complete."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

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
from penstock.jobs import TERMINAL, Claim, Phase, State
from penstock.models import media_references
from penstock.processors.base import Output, Prompt
from penstock.storage import journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.guard import GuardedClient
from penstock.storage.journal import Ended, Journal
from penstock.storage.media import LocalMedia, fetch_media
from penstock.storage.references import pointing_to
from penstock.storage.submissions import check_tensors
from penstock.workers.artifacts import upload
from penstock.workers.attempts import Attempt, Heartbeat
from penstock.workers.checkpoints import StoredCheckpoints, forget_checkpoints
from penstock.workers.engine.base import Engine
from penstock.workers.outcomes import blame, outcome_of
from penstock.workers.processing import Processed, Processing, Work
from penstock.workers.results import Results, mark_of
from penstock.workers.serving import Serving, Shelf

#: Between two tries to tell Redis how an attempt ended. The result is in the store: only the word is missing.
COMPLETE_RETRY_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What every attempt needs."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    guard: GuardedClient
    processing: Processing
    engine: Engine
    heartbeat: Heartbeat
    shelf: Shelf
    #: This worker's scratch folder.
    spool: Path

    @property
    def journal(self) -> Journal:
        """What ends attempts, in both stores."""
        return Journal(self.store, self.objects)

    @property
    def results(self) -> Results:
        """What finds the results of earlier jobs."""
        return Results(self.journal, self.settings.retention_s)

    def run(self, claim: Claim) -> None:
        """Run one attempt to its end. Never raises."""
        attempt = Attempt(claim, on_news=self.heartbeat.hasten)
        folder = self.spool / f"{claim.key.id}-{claim.fence}"
        ids = claim.submission.log_ids
        with self.heartbeat.watching(attempt), structlog.contextvars.bound_contextvars(**ids):
            log.info("attempt.started", attempt=claim.attempt, model=claim.submission.model)
            try:
                self._run(attempt, folder)
            except Exception as error:  # whatever it is, it would come again: a lease that ends would only repeat it
                log.exception("attempt.broken")
                self._fail(attempt, error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _run(self, attempt: Attempt, folder: Path) -> None:
        try:
            outcome = self._outcome(attempt, folder)
        except Interruption as reason:
            self._abandon(attempt, reason)
        else:
            self._end(attempt, outcome)

    def _fail(self, attempt: Attempt, error: Exception) -> None:
        """End an attempt whose outcome could not even be told, with nothing but the reason."""
        reason = ProcessorFailed(f"what the job made cannot be stored ({type(error).__name__})")
        try:
            self._end(attempt, records.Outcome(State.FAILED, error=reason.report()))
        except Exception:  # the lease ends by itself
            log.exception("attempt.left")

    def _outcome(self, attempt: Attempt, folder: Path) -> records.Outcome:
        try:
            outcome = self._result(attempt, folder)
        except (Fenced, Drained):
            raise
        except Exception as error:  # whatever a processor, a decoder or a network does ends this attempt only
            known = blame(error)
            if not isinstance(known, Canceled):
                log.warning("attempt.failed", code=known.code, detail=known.detail, exc_info=known is not error)
            outcome = outcome_of(known, attempt=attempt.claim.attempt, draw=random.random())  # noqa: S311
        return replace(outcome, metrics=attempt.metrics(), progress=attempt.progress)

    def _result(self, attempt: Attempt, folder: Path) -> records.Outcome:
        if attempt.claim.crashes and self.journal.run(journal.adopt(attempt.claim.key)) is not None:
            raise Fenced("a lost attempt had ended the job, and nobody had told Redis")
        serving = self.shelf.serving().get(attempt.claim.submission.model)
        if serving is None:
            raise Drained("the model is not served here any more")
        # Again: a job may come from a drop rule, or its tenant may have lost the right since.
        asked, tenant = attempt.claim.submission.input, attempt.claim.key.tenant
        check_tensors(serving.schema, asked, tenant=tenant, settings=self.settings)
        attempt.enter(Phase.FETCHING)
        with attempt.timed("fetch"):
            media = self._fetch(attempt, serving, folder / "media")
        processed = self._known(attempt, serving, media, folder / "known")
        if processed is None:
            attempt.enter(Phase.LOADING)
            with attempt.timed("cold_start"):
                self.engine.load(serving.model, check=attempt.check)
            work = Work(serving.model, attempt.claim.submission.input, media, folder / "artifacts")
            processed = self._infer(attempt, work, self._checkpoints(attempt, folder / "checkpoints"))
        attempt.check()
        attempt.enter(Phase.UPLOADING)
        with attempt.timed("upload"):
            artifacts = upload(self.objects, attempt.claim, processed.files)
        result = processed.result
        return records.Outcome(State.SUCCEEDED, text=result.text, data=result.data, artifacts=artifacts)

    def _known(
        self, attempt: Attempt, serving: Serving, media: dict[str, LocalMedia], folder: Path
    ) -> Processed | None:
        """Return the result that another job had, if the model has a cache and there is one."""
        if not serving.model.cache:
            return None
        with attempt.timed("fetch"):
            attempt.mark = mark_of(attempt.claim, serving, media, check=attempt.check)
            found = self.results.find(attempt.claim.key.tenant, attempt.mark, folder, check=attempt.check)
        attempt.count({"cached": int(found is not None)})
        return found

    def _fetch(self, attempt: Attempt, serving: Serving, folder: Path) -> dict[str, LocalMedia]:
        files: dict[str, LocalMedia] = {}
        references = media_references(serving.schema, dict(attempt.claim.submission.input))
        for number, (place, reference) in enumerate(references):
            attempt.check()
            if reference not in files:
                with pointing_to(place):
                    files[reference] = fetch_media(
                        reference,
                        folder / str(number),
                        store=self.objects,
                        tenant=attempt.claim.key.tenant,
                        settings=self.settings,
                        guard=self.guard,
                        limit_bytes=serving.model.limits.max_bytes or self.settings.max_upload_bytes,
                        check=attempt.check,
                    )
                attempt.fetched(files[reference].path.stat().st_size)
        return files

    def _checkpoints(self, attempt: Attempt, folder: Path) -> StoredCheckpoints:
        def on_news(count: int) -> None:
            attempt.saved(count)
            if count:
                self.heartbeat.beat(attempt)  # at once: from here on a crash of ours is the job's first again

        return StoredCheckpoints(self.objects, attempt.claim.key, folder, on_news)

    def _infer(self, attempt: Attempt, work: Work, checkpoints: StoredCheckpoints) -> Processed:
        attempt.enter(Phase.PREPROCESSING)
        with ExitStack() as stack:
            with attempt.timed("preprocess"):
                opened = self.processing.open(
                    work, check=attempt.check, say=attempt.say, checkpoints=checkpoints, show=attempt.show
                )
                session = stack.enter_context(opened)
            if not session.repeatable:
                attempt.mark = None
            total = None if session.count is None else session.done + session.count
            attempt.plan(session.done, total, session.unit, steps=session.steps)
            prompts = _timed_prompts(attempt, session.prompts)
            begun = time.monotonic()
            outputs = self.engine.run(
                work.model, prompts, check=attempt.check, cost=session.cost, on_batch=attempt.batched
            )
            outputs = stack.enter_context(closing(outputs))
            processed = session.finish(_counted_outputs(attempt, outputs, session.done))
        self.heartbeat.tell(attempt)
        waited = attempt.metrics().get("inference_ms", 0.0) / 1000
        attempt.add_seconds("postprocess", max(0.0, time.monotonic() - begun - waited))
        return processed

    def _end(self, attempt: Attempt, outcome: records.Outcome) -> None:
        """Tell both stores until they answer, and delete what will never be visible.

        Only an answer to this very call says whose result is visible. Without one the artifacts stay: the call may
        have arrived, and the keeper collects what nobody names.
        """
        while (ended := self._complete(attempt.claim, outcome)) is None:
            if self.heartbeat.wait_for_drain(COMPLETE_RETRY_S):
                log.warning("attempt.unanswered", state=outcome.state.value)
                return
        log.info("attempt.ended", state=outcome.state.value, answer=ended.answer, visible=ended.visible)
        if not ended.visible:
            self._delete_artifacts(attempt.claim)
        elif attempt.mark is not None:
            self.results.remember(attempt.claim.key, attempt.mark)
        if attempt.has_saved and outcome.state in TERMINAL and ended.answer != "fenced":
            forget_checkpoints(self.objects, attempt.claim.key)

    def _complete(self, claim: Claim, outcome: records.Outcome) -> Ended | None:
        try:
            return self.journal.run(journal.complete(claim, outcome))
        except JobGone:
            return Ended("fenced", visible=False)
        except PenstockError as error:
            log.warning("attempt.untold", code=error.code)
            return None

    def _abandon(self, attempt: Attempt, reason: Interruption) -> None:
        log.info("attempt.abandoned", reason=reason.code)
        self._delete_artifacts(attempt.claim)
        if isinstance(reason, Drained):
            try:
                self.journal.run(journal.release(attempt.claim))
            except PenstockError:
                log.warning("release.unanswered")  # the lease ends by itself

    def _delete_artifacts(self, claim: Claim) -> None:
        try:
            self.objects.delete_prefix(claim.prefix)
        except ObjectStoreUnavailable:
            log.warning("artifacts.left", prefix=claim.prefix)


def _timed_prompts(attempt: Attempt, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
    """Draw prompts and say whose they are, adding up the time that making them takes; close them at the end."""
    try:
        while True:
            with attempt.timed("preprocess"):
                prompt = next(prompts, None)
            if prompt is None:
                return
            yield replace(prompt, tenant=attempt.claim.key.tenant)
    finally:
        close = getattr(prompts, "close", None)
        if close is not None:
            close()


def _counted_outputs(attempt: Attempt, outputs: Iterator[Output], done: int) -> Iterator[Output]:
    """Pass outputs on, counting them from `done` on and adding up the time spent waiting for them."""
    while True:
        with attempt.timed("inference"):
            output = next(outputs, None)
        if output is None:
            attempt.enter(Phase.POSTPROCESSING)
            return
        attempt.enter(Phase.INFERRING)
        if not output.partial:
            done += 1
            attempt.advance(done)
            attempt.count(output.counts)
        yield output
