"""Raw tensors from a tenant that may send them, through an IO process and an exported program; others are refused."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from penstock.config import Settings
from penstock.errors import InvalidInput
from penstock.intake.local_media import LocalMedia
from penstock.intake.media import upload_key
from penstock.jobs import JobKey, State
from penstock.models import CatalogueEntry, Model, media_references, tensor_places
from penstock.processors.registry import Registry, export
from penstock.processors.tensors.processor import Tensors
from penstock.storage.redis import catalogues, records
from penstock.workers.claim_loop import Slots
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import InThread, Processed, Work
from penstock.workers.served_models import ServedModels
from tests.support.echo_processor import open_bench
from tests.support.engine_jobs import never
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

DESCRIPTION = """
[inputs.x]
shape = ["N", 4]
[inputs.scale]
dtype = "int64"
shape = [2]
[outputs.y]
[outputs.total]
"""


class Toy(nn.Module):
    """A linear map of the rows, scaled, and the sum of it all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = self.linear(x) * scale.float().sum(dim=1)[:, None, None]
        return y, y.sum(dim=(1, 2))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("toy")
    example = torch.zeros(2, 5, 4), torch.zeros(2, 2, dtype=torch.int64)
    auto = torch.export.Dim.AUTO
    program = torch.export.export(Toy().eval(), example, dynamic_shapes={"x": {0: auto, 1: auto}, "scale": {0: auto}})
    torch.export.save(program, folder / "program.pt2")
    (folder / "penstock.toml").write_text(DESCRIPTION)
    pinned = {"program.pt2": hashlib.sha256((folder / "program.pt2").read_bytes()).hexdigest()}
    return Model(
        name="toy", title="Toy", runner="torch", processor="tensor", source=str(folder), revision="1", files=pinned
    )


@pytest.fixture
def entry(model: Model) -> CatalogueEntry:
    return export(Registry().register("tensor", Tensors), model)


def inputs(**changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    x = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    return {"x": x, "scale": np.array([2, 3]), **changes}


@pytest.fixture(scope="module")
def pool() -> Iterator[IOPool]:
    with closing(IOPool(1, ForkOptions(2**30, processors={"tensor": f"{Tensors.__module__}:Tensors"}))) as pool:
        yield pool


@pytest.fixture(scope="module")
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(pool: IOPool, engine: BatchingEngine, model: Model, file: Path, folder: Path) -> Processed:
    work = Work(model, {"file": "media://x"}, {"media://x": LocalMedia(file)}, folder)
    with pool.open(work, check=never, say=lambda _: None) as session:
        return session.finish(engine.run(model, session.prepared.prompts, check=never))


@torch.inference_mode()
def test_the_program_gets_the_tensors_and_its_answers_come_back(
    pool: IOPool, engine: BatchingEngine, model: Model, tmp_path: Path
) -> None:
    save_file(inputs(), tmp_path / "in.safetensors")
    done = run(pool, engine, model, tmp_path / "in.safetensors", tmp_path / "out")
    found = load_file(done.files["tensors.safetensors"].path)
    y, total = Toy().eval()(torch.from_numpy(inputs()["x"])[None], torch.tensor([[2, 3]]))
    np.testing.assert_allclose(found["y"], y[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found["total"], total[0], rtol=1e-5, atol=1e-5)
    assert done.result.data == {
        "tensors": {"y": {"dtype": "float32", "shape": [6, 3]}, "total": {"dtype": "float32", "shape": []}}
    }


def test_what_does_not_fit_ends_its_job_only(
    pool: IOPool, engine: BatchingEngine, model: Model, tmp_path: Path
) -> None:
    wrong, right = tmp_path / "wrong.safetensors", tmp_path / "right.safetensors"
    save_file(inputs(x=np.zeros((6, 5), np.float32)), wrong)
    save_file(inputs(), right)
    for number in range(2):
        with pytest.raises(InvalidInput, match=r"`x`, float32 \(N, 4\)"):
            run(pool, engine, model, wrong, tmp_path / f"wrong-{number}")
        assert run(pool, engine, model, right, tmp_path / f"right-{number}").files


def test_the_whole_request_is_marked_as_tensors(entry: CatalogueEntry) -> None:
    assert entry.problem is None
    assert list(tensor_places(entry.input_schema, {"file": "media://a/b.npy"})) == [""]
    assert list(media_references(entry.input_schema, {"file": "media://a/b.npy"})) == [("/file", "media://a/b.npy")]


def test_a_field_can_be_marked_too() -> None:
    part = {"type": "object", "properties": {"vectors": {"x-tensors": True, "type": "string", "format": "media"}}}
    schema = {"properties": {"parts": {"items": {"$ref": "#/$defs/Part"}}}, "$defs": {"Part": part}}
    asked = {"parts": [{}, {"vectors": "media://a/b"}, {"vectors": None}]}
    assert list(tensor_places(schema, asked)) == ["/parts/1/vectors"]


class TestWhoMaySend:
    @pytest.fixture(
        params=[
            {},
            {"raw_tensors": True},
            {"raw_tensors": True, "tenants": {"default": {"raw_tensors": False}}},
            {"tenants": {"default": {"raw_tensors": True}, "other": {"raw_tensors": False}}},
        ],
        ids=str,
    )
    async def service(
        self, valkey: ValkeyProcess, tmp_path: Path, entry: CatalogueEntry, request: pytest.FixtureRequest
    ) -> AsyncIterator[Service]:
        async with serving(valkey.url, tmp_path, **request.param) as service:
            await service.jobs.run(catalogues.publish([entry], worker="v", queues=["default"], alive_s=600))
            key = upload_key("default", "up", "in.npy")
            service.objects.put_bytes(key, b"x", content_type="application/octet-stream")
            yield service

    async def test_a_tenant_without_the_right_gets_403_and_no_job(self, service: Service) -> None:
        body = {"model": "toy", "input": {"file": "media://up/in.npy"}}
        response = await service.http.post("/v1/jobs", json=body)
        if service.settings.takes_tensors("default"):
            assert response.status_code == 202
            return
        problem = assert_problem(response, 403, "tensors_refused")
        assert "raw_tensors" in problem["detail"]
        assert problem["errors"] == [{"pointer": "/input", "detail": "is a raw tensor"}]
        assert (await service.http.get("/v1/jobs")).json()["jobs"] == []

    async def test_other_models_are_for_everybody(self, service: Service) -> None:
        await service.submit()


def test_the_setting_is_for_all_and_a_tenant_s_own_comes_first(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, tenants={"a": {"raw_tensors": True}, "b": {"max_jobs": 1}})  # type: ignore[dict-item]
    assert [settings.takes_tensors(tenant) for tenant in ("a", "b", "c")] == [True, False, False]
    settings = settings.model_copy(update={"raw_tensors": True})
    assert [settings.takes_tensors(tenant) for tenant in ("a", "b", "c")] == [True, True, True]


@pytest.mark.parametrize("allowed", [True, False])
def test_a_worker_looks_again(valkey: ValkeyProcess, tmp_path: Path, model: Model, allowed: bool) -> None:
    with (
        open_bench(valkey.url, tmp_path, raw_tensors=allowed) as bench,
        closing(BatchingEngine(Runners.installed())) as engine,
    ):
        processing, served = InThread(Registry().register("tensor", Tensors)), ServedModels()
        served.put(model, processing.entry(model))
        save_file(inputs(), tmp_path / "in.safetensors")
        bench.objects.put_file(
            upload_key("default", "up", "in.safetensors"), tmp_path / "in.safetensors", content_type="x/y"
        )
        pipeline = replace(bench.pipeline, served=served, processing=processing, engine=engine)
        key = bench.submit("a", {"file": "media://up/in.safetensors"}, model="toy")
        assert Slots(bench.settings, bench.store, served, pipeline.run).work("default") == 1
        job = bench.store.run(records.read(JobKey("default", "a")))
    assert job.key == key
    assert job.state is (State.SUCCEEDED if allowed else State.FAILED)
    assert (job.error.code if job.error else None) == (None if allowed else "tensors_refused")
