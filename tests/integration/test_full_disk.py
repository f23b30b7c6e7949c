"""A full disk: refusals in words, `/readyz`, and `penstock doctor`; on a small disk where one may be mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.cli.doctor import examine
from penstock.config import Settings
from penstock.errors import ObjectStoreFull, OutOfSpace, ServiceError
from penstock.storage.checks import inspect_disk
from penstock.storage.objects.local import LocalStore
from penstock.storage.spool import require_writable
from tests.support.full_disk import files_of_at_most
from tests.support.service import Service, assert_problem, serving
from tests.support.valkey import ValkeyProcess

UPLOAD_BYTES, LIMIT_BYTES = 3_000_000, 2_000_000


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """The mount point of a full disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "penstock-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (folder / "data").mkdir()
        with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_an_upload_that_does_not_fit_is_refused_in_words(valkey: ValkeyProcess, tmp_path: Path) -> None:
    async with serving(valkey.url, tmp_path, max_upload_bytes=10**7) as service:
        link = (await service.http.post("/v1/uploads", json={"filename": "a.tif", "size_bytes": UPLOAD_BYTES})).json()
        with files_of_at_most(LIMIT_BYTES):
            answer = await put(service, link)
        problem = assert_problem(answer, 503, "out_of_space")
        assert "scratch disk is full" in problem["detail"]
        assert int(answer.headers["retry-after"]) >= 1
        assert list((service.settings.spool_dir / "uploads").iterdir()) == []
        assert (await put(service, link)).status_code == 200


async def put(service: Service, link: dict[str, Any]) -> httpx2.Response:
    return await service.http.put(link["url"], content=bytes(UPLOAD_BYTES), headers=link["headers"])


async def test_readyz_says_what_cannot_be_written(valkey: ValkeyProcess, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    async with serving(valkey.url, tmp_path, spool=spool) as service:
        assert (await service.http.get("/readyz")).status_code == 200
        spool.rmdir()
        spool.write_text("a file where the folder should be")
        problem = assert_problem(await service.http.get("/readyz"), 503, "not_ready")
        assert problem["errors"] == [{"pointer": "/spool", "detail": "cannot be written"}]
        spool.unlink()
        assert (await service.http.get("/readyz")).status_code == 200
        assert list(spool.iterdir()) == []


async def test_readyz_says_which_disk_is_full(valkey: ValkeyProcess, full_disk: Path) -> None:
    async with serving(valkey.url, full_disk / "data") as service:
        problem = assert_problem(await service.http.get("/readyz"), 503, "not_ready")
        assert {(issue["pointer"], issue["detail"]) for issue in problem["errors"]} == {
            ("/object_store", "is full"), ("/spool", "is full"),
        }  # fmt: skip
        answer = await service.http.post("/v1/jobs", json={"model": "echo", "input": {"text": "a"}})
        assert_problem(answer, 503, "object_store_full")
        (full_disk / "ballast").unlink()
        assert (await service.http.get("/readyz")).status_code == 200


def test_a_full_store_and_a_full_scratch_folder_are_told_apart_from_others(full_disk: Path, tmp_path: Path) -> None:
    store = LocalStore(full_disk / "data" / "objects")
    with pytest.raises(ObjectStoreFull, match="full"):
        store.ping()
    with pytest.raises(ObjectStoreFull, match="free space"):
        store.put_bytes("a", bytes(10_000), content_type="a/b")
    with pytest.raises(OutOfSpace, match="full"):
        require_writable(full_disk)
    (tmp_path / "file").touch()
    with pytest.raises(ServiceError, match="cannot be written"):
        require_writable(tmp_path / "file" / "spool")


def test_doctor_says_what_is_full(valkey: ValkeyProcess, full_disk: Path) -> None:
    settings = Settings(data=full_disk / "data", redis_url=valkey.url)
    found = {each.name: each for each in examine(settings, "http://127.0.0.1:1")}
    for name in ("object store", "scratch disk", "data disk"):
        assert not found[name].ok
        assert "full" in found[name].detail
        assert "free space" in found[name].remedy


def test_a_disk_with_room_is_fine_and_one_with_little_is_doubtful(tmp_path: Path) -> None:
    finding = inspect_disk("disk", tmp_path / "not" / "made")
    free = os.statvfs(tmp_path)
    assert (finding.ok, finding.doubtful) == (True, free.f_bavail * free.f_frsize < 10**9)
    assert "GB free" in finding.detail
    assert list(tmp_path.iterdir()) == []
