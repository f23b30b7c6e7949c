"""The calls of the object store for a small job: each is one request to S3 (see tests/contract/test_s3_store.py)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.jobs import State
from penstock.storage.objects.local import LocalStore
from penstock.storage.redis import records
from penstock.workers.claim_loop import Slots
from penstock.workers.store_waits import StoreWaits
from tests.support.echo_processor import open_bench
from tests.support.valkey import ValkeyProcess

ASKING = frozenset(
    {
        "put_bytes", "put_file", "get_file", "get_bytes", "fetch", "read", "head", "list", "delete",
        "delete_prefix",
    }
)  # fmt: skip


class Counting(LocalStore):
    """A folder that notes the calls which would be requests to S3."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in ASKING:
            return found

        def noted(key: str, *args: Any, **options: Any) -> Any:
            self.asked.append(f"{name} {key.rpartition('/')[2]}")
            return found(key, *args, **options)

        return noted


def test_a_job_with_a_small_result_takes_a_put_of_its_request_artifact_and_outcome(
    valkey: ValkeyProcess, tmp_path: Path
) -> None:
    """The first job of a tenant in a worker takes one more, of the environment in which its result was computed."""
    with open_bench(valkey.url, tmp_path, durability="manifest") as bench:
        objects = Counting(tmp_path / "objects")
        pipeline = replace(bench.pipeline, objects=objects, waits=StoreWaits(objects, 60))
        bench = replace(bench, objects=objects, pipeline=pipeline)
        slots = Slots(bench.settings, bench.store, bench.pipeline.served, bench.pipeline.run)

        def asked_for(name: str) -> list[str]:
            media = bench.upload("hi")
            objects.asked.clear()
            key = bench.submit(name, {"text": media})
            assert slots.work("default") == 1
            assert bench.store.run(records.read(key)).state is State.SUCCEEDED
            return [each for each in objects.asked if not each.endswith(media.rpartition("/")[2])]

        def usual(name: str) -> list[str]:
            mark = f"put_bytes {name}", f"delete {name}"
            return [
                mark[0], "put_bytes request.json", "put_file echo.txt", "put_bytes outcome.json", mark[1],
            ]  # fmt: skip

        first = asked_for("a")
        (environment,) = [each for each in first if each not in usual("a")]
        assert environment.startswith("put_bytes ")
        assert [each for each in first if each != environment] == usual("a")
        assert asked_for("b") == usual("b")
