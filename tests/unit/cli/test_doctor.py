"""The doctor's findings on the queues of a service."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.cli.doctor import _access_profiles, _devices, _models, _worker
from penstock.client import Worker
from penstock.client.answers import ModelInfo, Queue
from penstock.client.decoding import read
from penstock.config import Settings

START = datetime(2026, 1, 1, tzinfo=UTC)


def worker(device: str, *queues: str) -> Worker:
    return Worker(id="w", host="host", queues=queues, slots=1, device=device, started_at=START, raw={})


def test_a_queue_is_reported_with_the_devices_of_its_workers() -> None:
    devices = _devices([worker("NVIDIA H100", "h100", "default"), worker("cpu", "default"), worker("cpu", "default")])
    assert devices == {"h100": ["NVIDIA H100"], "default": ["NVIDIA H100", "cpu"]}
    queue = read(Queue, {"name": "h100", "queued": 2, "running": 1, "workers": 1})
    found = _worker(queue, devices["h100"], served=True, pooled=False)
    assert (found.ok, found.detail) == (True, "1 at queue h100 (NVIDIA H100), 2 waiting, 1 running")
    assert _worker(queue, served=True, pooled=False).detail == "1 at queue h100, 2 waiting, 1 running"


def test_a_model_that_no_worker_serves_is_no_model_that_warms_up() -> None:
    model = read(ModelInfo, {"name": "csmask", "revision": "1", "ready": False})
    [alone] = _models([model], set())
    assert (alone.ok, alone.doubtful) == (True, True)
    assert alone.detail == "revision 1, but no worker serves it now: its jobs wait"
    assert "penstock up" in alone.remedy
    [served] = _models([model], {"csmask"})
    assert (served.ok, served.doubtful, served.detail) == (True, False, "revision 1, warming up")


def test_an_access_profile_without_its_secret_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_text("s3cr3t")
    monkeypatch.delenv("NOT_SET_HERE", raising=False)
    profiles = [
        {
            "name": "a",
            "kind": "bearer",
            "hosts": ["a.b"],
            "secret": {"file": str(tmp_path / "there")},
            "tenants": ["t"],
        },
        {"name": "b", "kind": "bearer", "hosts": ["c.d"], "secret": {"env": "NOT_SET_HERE"}},
        {"name": "c", "kind": "s3", "buckets": ["eodata"], "unsigned": True},
    ]
    found = list(_access_profiles(Settings(access_profiles=profiles)))
    assert [(one.name, one.ok) for one in found] == [("access a", True), ("access b", False), ("access c", True)]
    assert [one.detail for one in found] == [
        "bearer at a.b for t", "the environment variable NOT_SET_HERE is not set", "s3 at eodata",
    ]  # fmt: skip
