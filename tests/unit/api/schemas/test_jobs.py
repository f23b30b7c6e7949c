"""Views of jobs that newer workers have written to."""

from __future__ import annotations

from penstock.api.schemas.jobs import LineList
from penstock.storage.redis.job_logs import JobLine, JobLines


def test_a_line_of_an_unknown_source_counts_as_the_processors() -> None:
    sources = ("processor", "runner", "a source of tomorrow")
    lines = JobLines(tuple(JobLine(1.0, 1, source, "info", "x") for source in sources), cut=0)
    assert [line.source for line in LineList.model_validate(lines).lines] == ["processor", "runner", "processor"]
