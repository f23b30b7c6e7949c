"""Schemas of vLLM's `/score`, `/rerank` and `/classify`, their translation to jobs, and their answers. Pure.

Fields without an effect on the result (`user`, `priority`, `request_id`) are accepted and ignored, as unknown ones are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import hypot
from operator import mul
from typing import Annotated, Any, Literal

from pydantic import Field

from penstock.api.facades.openai.answers import JobResult, require_whole
from penstock.api.facades.openai.requests import Body, ModelName, invalid
from penstock.errors import InvalidRequest, Issue
from penstock.json_body import validated
from penstock.models import CatalogueEntry
from penstock.requests import JobRequest

Texts = str | Annotated[list[str], Field(min_length=1, max_length=10_000)]
#: Classes of a text in a job's result: all of them.
_ALL_CLASSES = 1000
#: Names of the two sides of a score request, each pair as vLLM takes it.
_SIDES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


class Common(Body):
    """The parameters of all requests."""

    model: ModelName
    #: -1 truncates texts to the model's context. Without it, longer texts are rejected.
    truncate_prompt_tokens: Literal[-1] | None = None
    use_activation: bool | None = None
    #: Older names of `use_activation`.
    activation: bool | None = None
    softmax: bool | None = None

    @property
    def raw(self) -> bool:
        """True for scores as the network computes them."""
        return False in (self.use_activation, self.activation, self.softmax)


class ScoreRequest(Common):
    """`POST /score`."""

    queries: Texts
    documents: Texts
    #: 0: no limit.
    max_tokens_per_query: Annotated[int, Field(ge=0)] = 0
    max_tokens_per_doc: Annotated[int, Field(ge=0)] = 0

    @property
    def sides(self) -> tuple[list[str], list[str]]:
        """The queries and the documents as lists."""
        return _listed(self.queries), _listed(self.documents)


class RerankRequest(ScoreRequest):
    """`POST /rerank`."""

    queries: str = Field(validation_alias="query")
    #: 0: all documents.
    top_n: Annotated[int, Field(ge=0)] | None = 0


class ClassifyRequest(Common):
    """`POST /classify`."""

    input: Texts


def read_score(body: Any) -> ScoreRequest:
    """Return a score request, with either of vLLM's names for its sides; raise `InvalidRequest`."""
    given = body if isinstance(body, dict) else {}
    names = max(_SIDES, key=lambda names: (names[0] in given) + (names[1] in given))
    renamed = dict(zip(names, ("queries", "documents"), strict=True))
    read = {renamed.get(name, name): value for name, value in given.items()} if given else body
    try:
        wanted = validated(ScoreRequest, read)
    except InvalidRequest as error:
        raise InvalidRequest(error.detail, errors=[_as_given(issue, names) for issue in error.errors]) from error
    queries, documents = wanted.sides
    if len(queries) not in (1, len(documents)):
        why = f"has {len(queries)} texts, and {names[1]} has {len(documents)}; give one, or as many"
        raise InvalidRequest(f"{names[0]} {why}", errors=[Issue(f"/{names[0]}", why)])
    return wanted


def _as_given(issue: Issue, names: tuple[str, str]) -> Issue:
    """Return the issue with the request's own name of a side."""
    own = dict(zip(("queries", "documents"), names, strict=True))
    field, *rest = issue.pointer.removeprefix("/").split("/")
    return replace(issue, pointer="/" + "/".join([own.get(field, field), *rest]) if field else issue.pointer)


def read_rerank(body: Any) -> RerankRequest:
    """Return a rerank request; raise `InvalidRequest`."""
    return validated(RerankRequest, body)


def read_classify(body: Any) -> ClassifyRequest:
    """Return a classify request; raise `InvalidRequest`, also for chats."""
    if isinstance(body, dict) and "messages" in body and "input" not in body:
        raise invalid("messages", "is not supported by the models of this service; send texts as `input`")
    return validated(ClassifyRequest, body)


def ranking_job(entry: CatalogueEntry, wanted: ScoreRequest) -> JobRequest:
    """Return the job of a score or rerank request: of a cross-encoder, or the embeddings of all texts."""
    if entry.processor != "text-ranking":
        cut = {"max_tokens_per_query": wanted.max_tokens_per_query, "max_tokens_per_doc": wanted.max_tokens_per_doc}
        if named := next((name for name, tokens in cut.items() if tokens), None):
            raise invalid(named, f"is not supported by {entry.name}, which embeds texts")
        queries, documents = wanted.sides
        return JobRequest(model=entry.name, input={"texts": [*queries, *documents]})
    limits = {"max_query_tokens": wanted.max_tokens_per_query, "max_document_tokens": wanted.max_tokens_per_doc}
    value = {"queries": wanted.queries, "documents": wanted.documents, "raw": wanted.raw}
    return JobRequest(model=entry.name, input={**value, **{name: most for name, most in limits.items() if most}})


def classify_job(entry: CatalogueEntry, wanted: ClassifyRequest) -> JobRequest:
    """Return the job of a classify request."""
    value = {"texts": _listed(wanted.input), "top_k": _ALL_CLASSES, "raw": wanted.raw}
    return JobRequest(model=entry.name, input=value)


def score(result: JobResult, wanted: ScoreRequest) -> dict[str, Any]:
    """Return the answer of `/score`; raise `ContextExceeded` for texts that were cut without being asked for."""
    rows = [{"index": index, "object": "score", "score": one} for index, one in enumerate(_scores(result, wanted))]
    return {**_head("score", result), "data": rows, "usage": usage(result)}


def rerank(result: JobResult, wanted: RerankRequest) -> dict[str, Any]:
    """Return the answer of `/rerank`, the best document first; raise `ContextExceeded` as `score` does."""
    _, documents = wanted.sides
    found = sorted(enumerate(_scores(result, wanted)), key=lambda scored: -scored[1])
    rows = [
        {"index": index, "document": {"text": documents[index], "multi_modal": None}, "relevance_score": one}
        for index, one in found[: wanted.top_n or None]
    ]
    tokens = usage(result)["prompt_tokens"]
    counts = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"score-{result.job_id}", "model": result.model, "usage": counts, "results": rows}


def classify(result: JobResult, wanted: ClassifyRequest) -> dict[str, Any]:
    """Return the answer of `/classify`; raise `ContextExceeded` as `score` does."""
    require_whole(result, wanted.truncate_prompt_tokens is not None)
    rows = [
        {"index": index, "label": labels[0]["label"], "probs": probs, "num_classes": len(probs)}
        for index, (labels, probs) in enumerate(classes_of(result))
    ]
    return {**_head("classify", result), "data": rows, "usage": usage(result)}


def classes_of(result: JobResult) -> Iterable[tuple[Sequence[Mapping[str, Any]], list[float]]]:
    """Yield the classes of each text, best first, and its scores in the order of the model's classes."""
    for text in result.data.get("texts") or ():
        labels = text["labels"]
        yield labels, [one["score"] for one in sorted(labels, key=lambda label: label["id"])]


def usage(result: JobResult) -> dict[str, Any]:
    """Return the tokens of a result as vLLM counts them."""
    tokens = dict(result.data.get("usage") or {}).get("prompt_tokens", 0)
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}


def _head(kind: str, result: JobResult) -> dict[str, Any]:
    name = f"{kind}-{result.job_id}"
    return {"id": name, "object": "list", "created": int(result.created_s), "model": result.model}


def _scores(result: JobResult, wanted: ScoreRequest) -> list[float]:
    def place(at: int) -> tuple[str, int]:
        # A cross-encoder has a text for each pair; embeddings have all queries before the documents.
        queries = 0 if "scores" in result.data else len(wanted.sides[0])
        return ("queries", at) if at < queries else ("documents", at - queries)

    require_whole(result, wanted.truncate_prompt_tokens is not None, place)
    if "scores" in result.data:
        return list(result.data["scores"])
    queries, documents = wanted.sides
    vectors = result.data["embeddings"]
    first, second = vectors[: len(queries)], vectors[len(queries) :]
    return [_cosine(a, b) for a, b in zip(first * len(documents) if len(first) == 1 else first, second, strict=True)]


def _cosine(a: Sequence[float], b: Sequence[float]) -> float:
    length = hypot(*a) * hypot(*b)
    return sum(map(mul, a, b)) / length if length else 0.0


def _listed(texts: str | Sequence[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)
