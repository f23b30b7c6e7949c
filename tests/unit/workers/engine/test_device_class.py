"""The kind of a machine is a short name that stays the same, and checkpoints of one kind are not found by another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.jobs import JobKey
from penstock.models import Model
from penstock.storage.objects.local import LocalStore
from penstock.workers.checkpoints import StoredCheckpoints
from penstock.workers.engine import device_class as device_class_module
from penstock.workers.engine.device_class import device_class, device_problem, has_gpu

MODEL = Model(
    name="m", title="M", runner="fake", processor="p", source="-", revision="1", device="cpu"
)  # fmt: skip


def test_a_kind_is_a_name_for_lanes_and_keys() -> None:
    assert re.fullmatch(r"cpu-[a-z0-9-]+", device_class(MODEL))
    assert device_class(MODEL) == device_class(MODEL.model_copy(update={"name": "other"}))


@pytest.mark.parametrize(
    ("driver", "visible", "found"),
    [(True, None, True), (True, "GPU-a", True), (True, "", False), (True, "-1", False), (False, "0", False)],
)
def test_a_function_needs_a_driver_and_a_visible_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: bool, visible: str | None, found: bool
) -> None:
    (tmp_path / "nvidiactl").touch() if driver else None
    monkeypatch.setattr(device_class_module, "_DRIVERS", (tmp_path / "nvidiactl",))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    on_gpu = MODEL.model_copy(update={"device": "cuda"})
    assert (has_gpu(), device_problem(on_gpu) is None, device_problem(MODEL)) == (found, found, None)


def test_checkpoints_of_another_kind_of_machine_are_not_found(tmp_path: Path) -> None:
    objects, key = LocalStore(tmp_path / "store"), JobKey("default", "a")
    news: list[int] = []

    def of(kind: str) -> StoredCheckpoints:
        return StoredCheckpoints(objects, key, tmp_path / f"found-{kind}", news.append, kind=kind)

    (tmp_path / "draft").write_text("strip")
    of("cpu-avx2").save("abc/1", tmp_path / "draft")
    assert of("cuda-x").found("abc/") == {}
    assert [path.read_text() for path in of("cpu-avx2").found("abc/").values()] == ["strip"]
    assert [info.key for info in objects.list(key.checkpoints)] == [f"{key.checkpoints}cpu-avx2/abc/1"]
