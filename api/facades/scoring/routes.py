"""`POST /score`, `/rerank` and `/classify` of vLLM: scores of pairs of texts, and classes of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from penstock.api.facades.calls import CurrentCall
from penstock.api.facades.capabilities import Capability
from penstock.api.facades.openai.answers import JobResult
from penstock.api.facades.scoring import forms
from penstock.jobs import Job

router = APIRouter(tags=["facades"], include_in_schema=False)


@router.post("/v1/score")
@router.post("/score")
async def score(call: CurrentCall) -> JSONResponse:
    """Score pairs of texts, by a cross-encoder or by the cosine of embeddings."""
    body = await call.read(forms.read_score)
    entry = await call.model(body.value.model, Capability.SCORING)
    job = await call.wait_for_result(await call.submit(body.fingerprint, forms.ranking_job(entry, body.value)))
    return _answer(job, forms.score(JobResult.of(job), body.value))


@router.post("/v2/rerank")
@router.post("/v1/rerank")
@router.post("/rerank")
async def rerank(call: CurrentCall) -> JSONResponse:
    """Rank documents by a query, the best first."""
    body = await call.read(forms.read_rerank)
    entry = await call.model(body.value.model, Capability.SCORING)
    job = await call.wait_for_result(await call.submit(body.fingerprint, forms.ranking_job(entry, body.value)))
    return _answer(job, forms.rerank(JobResult.of(job), body.value))


@router.post("/classify")
async def classify(call: CurrentCall) -> JSONResponse:
    """Classify texts."""
    body = await call.read(forms.read_classify)
    entry = await call.model(body.value.model, Capability.CLASSIFICATION)
    job = await call.wait_for_result(await call.submit(body.fingerprint, forms.classify_job(entry, body.value)))
    return _answer(job, forms.classify(JobResult.of(job), body.value))


def _answer(job: Job, content: Mapping[str, Any]) -> JSONResponse:
    return JSONResponse(content, headers={"x-request-id": job.key.id})
