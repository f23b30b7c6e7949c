"""Scratch folders: one base folder for each tenant and model, and nothing in it outlives the jobs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.jobs import Claim, JobKey, Submission
from penstock.workers.scratch import EMPTY_S, ScratchFolders


@pytest.fixture
def claim() -> Claim:
    submission = Submission(JobKey("a", "1"), "m", "default", {}, "f")
    return Claim(submission, attempt=1, crashes=0, fence=1, claimed_s=0, lease_s=30)


def of_tenant(claim: Claim, tenant: str) -> Claim:
    return replace(claim, submission=replace(claim.submission, key=replace(claim.key, tenant=tenant)))


def test_tenants_and_models_share_no_base_folder(tmp_path: Path, claim: Claim) -> None:
    scratch = ScratchFolders(tmp_path, shared=True)
    other_model = replace(claim, submission=replace(claim.submission, model="another"))
    with (
        scratch.folder(claim) as one,
        scratch.folder(of_tenant(claim, "b")) as two,
        scratch.folder(other_model) as three,
    ):
        assert len({one.parent, two.parent, three.parent}) == 3
    with scratch.folder(replace(claim, fence=claim.fence + 1)) as again:
        assert again.parent == one.parent
        assert again != one


def test_attempts_share_no_base_folder_where_processes_are_not_used_again(tmp_path: Path, claim: Claim) -> None:
    scratch = ScratchFolders(tmp_path, shared=False)
    with scratch.folder(claim) as one, scratch.folder(replace(claim, fence=claim.fence + 1)) as two:
        assert one.parent != two.parent
    assert list(tmp_path.iterdir()) == []


def test_what_a_job_hid_in_its_base_folder_goes_with_it_and_a_neighbours_folder_stays(
    tmp_path: Path, claim: Claim
) -> None:
    scratch = ScratchFolders(tmp_path, shared=True)
    with scratch.folder(replace(claim, fence=claim.fence + 1)) as neighbour:
        neighbour.mkdir(parents=True)
        with scratch.folder(claim) as folder:
            (folder / "media").mkdir(parents=True)
            (folder.parent / "hidden").write_text("for the next job")
            (folder.parent / "link").symlink_to(tmp_path)
        assert list(folder.parent.iterdir()) == [neighbour]


def test_a_folder_on_a_disk_that_is_away_ends_no_worker(tmp_path: Path, claim: Claim) -> None:
    (tmp_path / "file").touch()
    for spool in (tmp_path / "gone", tmp_path / "file" / "spool"):
        with ScratchFolders(spool, shared=True).folder(claim) as folder:
            assert not folder.parent.exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may list every folder")
def test_a_folder_that_a_processor_closed_is_removed(tmp_path: Path, claim: Claim) -> None:
    scratch = ScratchFolders(tmp_path, shared=True)
    with scratch.folder(claim) as folder:
        (folder / "deeper" / "still").mkdir(parents=True)
        for closed in (folder / "deeper", folder, folder.parent):
            closed.chmod(0)
    assert list(folder.parent.iterdir()) == []


def test_empty_base_folders_of_long_ago_are_removed(tmp_path: Path, claim: Claim) -> None:
    scratch = ScratchFolders(tmp_path, shared=True, many=2)
    for tenant in ("a", "b", "c"):
        with scratch.folder(of_tenant(claim, tenant)) as folder:
            folder.mkdir(parents=True)
    long_ago = time.time() - 2 * EMPTY_S
    os.utime(folder.parent, (long_ago, long_ago))
    with scratch.folder(of_tenant(claim, "a")):
        assert len(list(tmp_path.iterdir())) == 2


def test_no_media_are_removed_behind_a_link(tmp_path: Path, claim: Claim) -> None:
    kept = tmp_path / "elsewhere" / "media-1" / "media.tif"
    kept.parent.mkdir(parents=True)
    kept.touch()
    scratch = ScratchFolders(tmp_path / "spool", shared=True)
    with scratch.folder(claim) as folder:
        folder.parent.mkdir(parents=True)
        folder.symlink_to(kept.parents[1])
    with scratch.folder(replace(claim, fence=2)) as folder:
        folder.mkdir()
        (folder / "media-1").symlink_to(kept.parent)
    assert list(folder.parent.iterdir()) == []
    assert kept.exists()


def put_a_link_in_the_place_of_artifacts(folder: Path) -> None:
    (folder / "artifacts").rmdir()
    (folder / "artifacts").symlink_to(folder.parent)


def put_another_folder_in_its_place(folder: Path) -> None:
    folder.rename(folder.parent / "old")
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "a.txt").touch()


CHANGES: dict[str, Callable[[Path], object]] = {
    "an artifact": lambda folder: (folder / "artifacts" / "a.txt").touch(),
    "a folder of artifacts": lambda folder: (folder / "artifacts" / "a").mkdir(),
    "a file beside": lambda folder: (folder / "tmp1").touch(),
    "a file in the base folder": lambda folder: (folder.parent / "hidden").touch(),
    "a link": put_a_link_in_the_place_of_artifacts,
    "another folder": put_another_folder_in_its_place,
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_job_leaves_in_its_base_folder_is_removed(tmp_path: Path, claim: Claim, change: str) -> None:
    scratch = ScratchFolders(tmp_path / "spool", shared=True)
    for fence in (1, 2):
        with scratch.folder(replace(claim, fence=fence)) as folder:
            (folder / "artifacts").mkdir(parents=True)
            CHANGES[change](folder)
        assert list(folder.parent.iterdir()) == []
