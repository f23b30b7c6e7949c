"""Scratch folders: one room for each tenant and model, and nothing in it outlives the jobs."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.jobs import Claim, JobKey, Submission
from penstock.workers.rooms import EMPTY_S, RESTED_S, Rooms


@pytest.fixture
def claim() -> Claim:
    submission = Submission(JobKey("a", "1"), "m", "default", {}, "f")
    return Claim(submission, attempt=1, crashes=0, fence=1, claimed_s=0, lease_s=30)


def of_tenant(claim: Claim, tenant: str) -> Claim:
    return replace(claim, submission=replace(claim.submission, key=replace(claim.key, tenant=tenant)))


def test_tenants_and_models_share_no_room(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=True)
    other_model = replace(claim, submission=replace(claim.submission, model="another"))
    with room.folder(claim) as one, room.folder(of_tenant(claim, "b")) as two, room.folder(other_model) as three:
        assert len({one.parent, two.parent, three.parent}) == 3
    with room.folder(replace(claim, fence=claim.fence + 1)) as again:
        assert again.parent == one.parent
        assert again != one


def test_attempts_share_no_room_where_processes_are_not_used_again(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=False)
    with room.folder(claim) as one, room.folder(replace(claim, fence=claim.fence + 1)) as two:
        assert one.parent != two.parent
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_remembered_of_rooms_for_one_attempt(tmp_path: Path, claim: Claim) -> None:
    rooms = Rooms(tmp_path, shared=False, clock=lambda: time.time() + 2 * RESTED_S)  # each folder has rested
    with rooms.folder(claim) as folder:
        folder.mkdir(parents=True)
    assert [held for held in vars(rooms).values() if isinstance(held, dict) and held] == []


def test_what_a_job_hid_in_its_room_goes_with_it_and_a_neighbours_folder_stays(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=True)
    with room.folder(replace(claim, fence=claim.fence + 1)) as neighbour:
        neighbour.mkdir(parents=True)
        with room.folder(claim) as folder:
            (folder / "media").mkdir(parents=True)
            (folder.parent / "hidden").write_text("for the next job")
            (folder.parent / "link").symlink_to(tmp_path)
        assert list(folder.parent.iterdir()) == [neighbour]


def test_a_folder_on_a_disk_that_is_away_ends_no_worker(tmp_path: Path, claim: Claim) -> None:
    (tmp_path / "file").touch()
    for spool in (tmp_path / "gone", tmp_path / "file" / "spool"):
        with Rooms(spool, shared=True).folder(claim) as folder:
            assert not folder.parent.exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root may list every folder")
def test_a_folder_that_a_processor_closed_is_removed(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=True)
    with room.folder(claim) as folder:
        (folder / "deeper" / "still").mkdir(parents=True)
        for closed in (folder / "deeper", folder, folder.parent):
            closed.chmod(0)
    assert list(folder.parent.iterdir()) == []


def test_empty_rooms_of_long_ago_are_removed(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=True, many=2)
    for tenant in ("a", "b", "c"):
        with room.folder(of_tenant(claim, tenant)) as folder:
            folder.mkdir(parents=True)
    long_ago = time.time() - 2 * EMPTY_S
    os.utime(folder.parent, (long_ago, long_ago))
    with room.folder(of_tenant(claim, "a")):
        assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_a_job_left_empty_is_used_again_and_one_with_anything_in_it_is_not(
    tmp_path: Path, claim: Claim
) -> None:
    room = Rooms(tmp_path, shared=True)
    with room.folder(claim) as first:
        (first / "artifacts").mkdir(parents=True)
    with room.folder(replace(claim, fence=2)) as second, room.folder(replace(claim, fence=3)) as beside:
        assert second == first
        assert beside != first
        assert list((second / "artifacts").iterdir()) == []
        (second / "artifacts" / "said.txt").touch()
    with room.folder(replace(claim, fence=4)) as third:
        assert third != first
        third.mkdir(parents=True)
        (third / "link").symlink_to(tmp_path)
    assert list(first.parent.iterdir()) == []


def test_a_folder_of_which_only_media_are_left_is_used_again_without_them(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=True)
    with room.folder(claim) as first:
        for name in ("artifacts", "media-1", "media-2"):
            (first / name).mkdir(parents=True)
        (first / "media-1" / "media.tif").touch()
        (first / "media-1" / "media.tif.aux.xml").touch()
        (first / "media-2" / "link").symlink_to(tmp_path)
    with room.folder(replace(claim, fence=2)) as second:
        assert second == first
        assert [each.name for each in second.iterdir()] == ["artifacts"]
        (second / "media-1" / "deeper").mkdir(parents=True)
    with room.folder(replace(claim, fence=3)) as third:
        assert third != first
    assert list(first.parent.iterdir()) == []


def test_no_media_are_removed_behind_a_link(tmp_path: Path, claim: Claim) -> None:
    kept = tmp_path / "elsewhere" / "media-1" / "media.tif"
    kept.parent.mkdir(parents=True)
    kept.touch()
    room = Rooms(tmp_path / "spool", shared=True)
    with room.folder(claim) as folder:
        folder.parent.mkdir(parents=True)
        folder.symlink_to(kept.parents[1])
    with room.folder(replace(claim, fence=2)) as folder:
        folder.mkdir()
        (folder / "media-1").symlink_to(kept.parent)
    assert list(folder.parent.iterdir()) == []
    assert kept.exists()


def later() -> float:
    """Return a time at which all folders of a test have rested."""
    return time.time() + 10 * RESTED_S


def let_the_clock_of_files_tick(folder: Path) -> None:
    """Wait until a change of a file gets another time than the changes before."""
    probe = folder / "probe"
    probe.touch()
    first = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == first:
        probe.chmod(0o600)


def left_by(room: Rooms, claim: Claim, act: Callable[[Path], object]) -> Path:
    """Run a job that does something in its folder; return the folder."""
    with room.folder(claim) as folder:
        (folder / "artifacts").mkdir(parents=True, exist_ok=True)
        act(folder)
    return folder


def nothing(_: Path) -> None:
    """Change no file."""


listings: dict[int, int] = {}


def count_listing(event: str, _: object) -> None:
    if event in ("os.scandir", "os.listdir") and threading.get_ident() in listings:
        listings[threading.get_ident()] += 1


def test_a_folder_that_has_rested_and_did_not_change_is_not_listed_again(tmp_path: Path, claim: Claim) -> None:
    room = Rooms(tmp_path, shared=True, clock=later)
    first, second = left_by(room, claim, nothing), left_by(room, claim, nothing)
    sys.addaudithook(count_listing)
    me = threading.get_ident()
    listings[me] = 0
    try:
        assert left_by(room, claim, nothing) == first == second
        assert listings[me] == 0
        list(os.scandir(tmp_path))  # the hook does count
        assert listings[me] == 1
    finally:
        del listings[me]


def test_a_look_at_a_folder_that_changed_just_now_is_not_remembered(tmp_path: Path, claim: Claim) -> None:
    """The file system rounds the times of changes: the next one may have the same."""
    room = Rooms(tmp_path, shared=True)
    for _ in range(100):
        folder = left_by(room, claim, nothing)
        assert left_by(room, claim, lambda folder: (folder / "artifacts" / "a").touch()) == folder
        assert list(folder.parent.iterdir()) == []


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
    "a link": put_a_link_in_the_place_of_artifacts,
    "another folder": put_another_folder_in_its_place,
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_job_leaves_in_a_folder_that_was_known_to_be_clean_is_removed(
    tmp_path: Path, claim: Claim, change: str
) -> None:
    spool = tmp_path / "spool"
    room = Rooms(spool, shared=True, clock=later)
    folder = left_by(room, claim, nothing)
    assert left_by(room, claim, nothing) == folder  # known by now
    let_the_clock_of_files_tick(tmp_path)
    assert left_by(room, claim, CHANGES[change]) == folder
    assert list(folder.parent.iterdir()) == []


def test_what_a_job_hid_in_a_room_that_was_known_is_removed(tmp_path: Path, claim: Claim) -> None:
    spool = tmp_path / "spool"
    room = Rooms(spool, shared=True, clock=later)
    folder = left_by(room, claim, nothing)
    assert left_by(room, claim, nothing) == folder
    let_the_clock_of_files_tick(tmp_path)
    assert left_by(room, claim, lambda folder: (folder.parent / "hidden").touch()) == folder
    assert list(folder.parent.iterdir()) == [folder]
