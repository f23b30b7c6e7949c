from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from penstock.workers.engine.function.process import ModelProcess


def test_a_process_that_cannot_start_leaves_no_descriptor_and_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = psutil.Process().num_fds()
    with pytest.raises(FileNotFoundError):
        ModelProcess("m", "penstock.functions.child", python=tmp_path / "gone", within_s=1)
    assert psutil.Process().num_fds() == before
    assert list(tmp_path.glob("model-*")) == []
