"""Containers of workers come when jobs want them and leave by themselves: 0, then up to 3, then 0."""

from __future__ import annotations

import pytest

from benchmarks.bursts import MOST, Outcome, container_bursts


@pytest.mark.timeout(1800)
def test_containers_come_for_a_burst_and_leave(images: dict[str, str], record_property: pytest.RecordProperty) -> None:
    del images
    outcome = Outcome()
    for line in container_bursts(1, outcome):
        record_property("figures", line)
    assert all(job.succeeded for job in outcome.jobs)
    assert {job.attempts for job in outcome.jobs} == {1}
    assert outcome.peak == MOST
    assert outcome.exit_codes == {0}
