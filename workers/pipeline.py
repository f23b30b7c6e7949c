"""One claimed job from its references to its visible result: fetch, prepare, infer, finish, store, complete."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from pydantic import ValidationError

from penstock.config import Settings
from penstock.errors import (
    Canceled,
    Drained,
    Fenced,
    Interruption,
    InvalidInput,
    Issue,
    JobGone,
    ObjectStoreUnavailable,
    PenstockError,
)
from penstock.jobs import Claim, Phase, Progress, State
from penstock.models import Model, media_references
from penstock.processors.base import IOProcessor, Output, Prepared, Prompt, Result
from penstock.storage import journal, records
from penstock.storage.base import ObjectStore
from penstock.storage.guard import GuardedClient
from penstock.storage.journal import Ended, Journal
from penstock.storage.media import LocalMedia, fetch_media
from penstock.workers.artifacts import Sink, upload
from penstock.workers.attempts import Attempt, Heartbeat
from penstock.workers.engine.base import Engine
from penstock.workers.outcomes import blame, outcome_of

#: Between two tries to tell Redis how an attempt ended. The result is in the store: only the word is missing.
COMPLETE_RETRY_S = 1.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Serving:
    """A model that this worker can run, with its processor."""

    model: Model
    processor: IOProcessor[Any, Any]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What every attempt needs."""

    settings: Settings
    store: records.Runs
    objects: ObjectStore
    guard: GuardedClient
    engine: Engine
    heartbeat: Heartbeat
    serving: dict[str, Serving]
    #: This worker's scratch folder.
    spool: Path

    @property
    def journal(self) -> Journal:
        """What ends attempts, in both stores."""
        return Journal(self.store, self.objects)

    def run(self, claim: Claim) -> None:
        """Run one attempt to its end. Never raises for what is wrong with the job."""
        attempt = Attempt(claim, on_phase=self.heartbeat.hasten)
        folder = self.spool / f"{claim.key.id}-{claim.fence}"
        with self.heartbeat.watching(attempt), structlog.contextvars.bound_contextvars(job=str(claim.key)):
            log.info("attempt.started", attempt=claim.attempt, model=claim.submission.model)
            try:
                outcome = self._outcome(attempt, folder)
            except Interruption as reason:
                self._abandon(attempt, reason)
            else:
                self._end(attempt, outcome)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

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
        serving = self.serving[attempt.claim.submission.model]
        request = _parse(serving.processor, attempt.claim)
        attempt.check()
        attempt.enter(Phase.FETCHING)
        with attempt.timed("fetch"):
            media = self._fetch(attempt, serving.model, serving.processor, folder / "media")
        attempt.enter(Phase.LOADING)
        with attempt.timed("cold_start"):
            self.engine.load(serving.model, check=attempt.check)
        sink = Sink(folder / "artifacts")
        result = self._infer(attempt, serving, request, media, sink)
        attempt.check()
        attempt.enter(Phase.UPLOADING)
        with attempt.timed("upload"):
            artifacts = upload(self.objects, attempt.claim, sink.files)
        return records.Outcome(State.SUCCEEDED, text=result.text, data=result.data, artifacts=artifacts)

    def _fetch(self, attempt: Attempt, model: Model, processor: IOProcessor[Any, Any], folder: Path) -> FetchedMedia:
        files: dict[str, LocalMedia] = {}
        document = attempt.claim.submission.input
        for number, (_, reference) in enumerate(media_references(processor.request.model_json_schema(), document)):
            attempt.check()
            if reference not in files:
                files[reference] = fetch_media(
                    reference,
                    folder / str(number),
                    store=self.objects,
                    tenant=attempt.claim.key.tenant,
                    settings=self.settings,
                    guard=self.guard,
                    limit_bytes=model.limits.max_bytes or self.settings.max_upload_bytes,
                )
        return FetchedMedia(files)

    def _infer(self, attempt: Attempt, serving: Serving, request: Any, media: FetchedMedia, sink: Sink) -> Result:
        attempt.enter(Phase.PREPROCESSING)
        with attempt.timed("preprocess"):
            prepared: Prepared[Any] = serving.processor.pre_process(request, media)
        attempt.progress = Progress(0, prepared.count, prepared.unit)
        prompts = _timed_prompts(attempt, prepared.prompts)
        begun = time.monotonic()
        with closing(self.engine.run(serving.model, prompts, check=attempt.check)) as outputs:
            counted = _counted_outputs(attempt, outputs)
            result = serving.processor.post_process(counted, prepared.context, sink)
        waited = attempt.metrics().get("inference_ms", 0.0) / 1000
        attempt.add_seconds("postprocess", max(0.0, time.monotonic() - begun - waited))
        return result

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


@dataclass(frozen=True, slots=True)
class FetchedMedia:
    """A job's media as local files."""

    files: dict[str, LocalMedia]

    def path(self, reference: str) -> Path:
        """Return the local file of a reference."""
        return self.files[reference].path

    def etag(self, reference: str) -> str | None:
        """Return the source's etag, where it has one."""
        return self.files[reference].etag


def _parse(processor: IOProcessor[Any, Any], claim: Claim) -> Any:
    try:
        return processor.request.model_validate(dict(claim.submission.input))
    except ValidationError as error:
        issues = [Issue("/input/" + "/".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
        raise InvalidInput(f"the input does not fit model {claim.submission.model}", errors=issues) from error


def _timed_prompts(attempt: Attempt, prompts: Iterator[Prompt]) -> Iterator[Prompt]:
    """Draw prompts, adding up the time that making them takes; close them where the engine stops drawing."""
    try:
        while True:
            with attempt.timed("preprocess"):
                prompt = next(prompts, None)
            if prompt is None:
                return
            yield prompt
    finally:
        close = getattr(prompts, "close", None)
        if close is not None:
            close()


def _counted_outputs(attempt: Attempt, outputs: Iterator[Output]) -> Iterator[Output]:
    """Pass outputs on, counting them and adding up the time spent waiting for them."""
    done = 0
    while True:
        with attempt.timed("inference"):
            output = next(outputs, None)
        if output is None:
            attempt.enter(Phase.POSTPROCESSING)
            return
        done += 1
        attempt.enter(Phase.INFERRING)
        attempt.advance(done)
        yield output
