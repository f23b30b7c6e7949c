"""The progress of transfers that run at once."""

from __future__ import annotations

import pytest

from penstock.client.uploads import TransferProgress, TransferStopped


def test_the_sum_never_decreases_when_a_transfer_begins_anew() -> None:
    told: list[tuple[int, int]] = []
    progress = TransferProgress(lambda done, total: told.append((done, total)), 20)
    progress.of("a")(5, 10)
    progress.of("b")(3, 10)
    progress.of("a")(0, 10)
    progress.of("b")(9, 10)
    assert told == [(5, 20), (8, 20), (8, 20), (9, 20)]
    assert progress.done("a") == 0


def test_a_transfer_ends_at_its_next_report_after_another_failed() -> None:
    progress = TransferProgress(None, 20)
    progress.stop.set()
    with pytest.raises(TransferStopped):
        progress.of("a")(1, 10)
