"""Error reports: the description of an error that clients see and that is stored with its job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.formats import known


@dataclass(frozen=True, slots=True)
class Issue:
    """One fault in a document: a JSON pointer to its place, and a sentence."""

    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The description of an error: the same object is `job.error` and the core of a problem+json body."""

    code: str
    title: str
    detail: str
    retryable: bool
    errors: tuple[Issue, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        issues = [{"pointer": issue.pointer, "detail": issue.detail} for issue in self.errors]
        return {
            "code": self.code, "title": self.title, "detail": self.detail, "retryable": self.retryable,
            "errors": issues,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ErrorReport:
        """Rebuild a report from `to_json`'s data."""
        issues = tuple(Issue(**known(Issue, issue)) for issue in data.get("errors", ()))
        return cls(data["code"], data["title"], data["detail"], data["retryable"], issues)


def with_places(detail: str, issues: Sequence[Issue]) -> str:
    """Return an error's sentence followed by its issues; an issue that repeats its end adds only its place."""
    places = [_place(issue, detail) for issue in issues]
    named = "; ".join(place for place in places if place)
    return f"{detail} ({named})" if named else detail


def _place(issue: Issue, detail: str) -> str:
    more = "" if detail.rstrip(".").endswith(issue.detail.rstrip(".")) else issue.detail
    return ": ".join(part for part in (issue.pointer, more) if part)
