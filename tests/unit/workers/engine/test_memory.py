"""Memory of devices, as `nvidia-smi` lists it."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.workers.engine.memory import CONTEXT_BYTES, process_bytes


def test_a_process_takes_what_nvidia_smi_says_and_at_least_a_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert process_bytes(12) == CONTEXT_BYTES
    lister = tmp_path / "nvidia-smi"
    lister.write_text("#!/bin/sh\necho '12, 300'\necho '12, 2000'\necho '123, 7000'\necho '13, [N/A]'\n")
    lister.chmod(0o755)
    assert [process_bytes(pid) for pid in (12, 123, 13)] == [2300 * 2**20, 7000 * 2**20, CONTEXT_BYTES]
