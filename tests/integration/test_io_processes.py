"""A decoder, a plugin or an attacker in an IO process ends one attempt and nothing else."""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from penstock.errors import (
    Canceled,
    DeviceLost,
    Drained,
    InvalidInput,
    MediaUnreadable,
    OutOfMemory,
    PenstockError,
    ProcessorFailed,
)
from penstock.intake.local_media import LocalMedia
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.checkpoints import NoCheckpoints
from penstock.workers.io import sandbox
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support.polling import wait_for

MIB = 2**20
OPTIONS = ForkOptions(
    256 * MIB, processors={"probe": "tests.support.probe_processor:Probe", "gone": "tests.no_such_module:Probe"}
)
MODEL = Model(
    name="probe", title="Probe", runner="fake", processor="probe", source=".", revision="1", io_timeout_s=60
)  # fmt: skip
CRASHING = MODEL.model_copy(update={"options": {"crash": True}})


@pytest.fixture(scope="module")
def shared_pool() -> Iterator[IOPool]:
    pool = IOPool(3, OPTIONS)
    yield pool
    pool.close()


@pytest.fixture
def pool(shared_pool: IOPool) -> Iterator[IOPool]:
    before = files_of_memory()
    yield shared_pool
    if files_of_memory() > before:
        gc.collect()  # pytest's notes of exceptions hold their frames
    # Nothing that was sent or taken is left open, whatever the test did.
    assert files_of_memory() <= before


@pytest.fixture(scope="module")
def single() -> Iterator[IOPool]:
    """Return a pool with one place."""
    with closing(IOPool(1, OPTIONS)) as pool:
        yield pool


@pytest.fixture(scope="module")
def without_landlock() -> Iterator[IOPool]:
    with closing(IOPool(1, replace(OPTIONS, lacking=["files"]))) as pool:
        yield pool


@pytest.fixture(scope="module")
def without_filter() -> Iterator[IOPool]:
    """Return a pool whose processes may use all system calls."""
    with closing(IOPool(2, replace(OPTIONS, lacking=["system calls"]))) as pool:
        yield pool


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(MODEL, {}, {}, tmp_path / "artifacts", room=tmp_path)


def nothing() -> None:
    """Let it go on."""


def echo(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output(prompt.data) for prompt in prompts)


def run(pool: IOPool, work: Work, check: Callable[[], None] = nothing, **input: Any) -> dict[str, Any]:  # noqa: A002
    with pool.open(replace(work, input=input), check=check, say=lambda _: None) as session:
        return dict(session.finish(echo(session.prepared.prompts)).result.data or {})


def error_of(pool: IOPool, work: Work, **input: Any) -> PenstockError:  # noqa: A002
    with pytest.raises(PenstockError) as caught:
        run(pool, work, **input)
    return caught.value


def files_of_memory() -> int:
    """Return the number of shared-memory files that this process holds."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder itself was open
            links.append(str(path.readlink()))
    return sum("memfd" in link for link in links)


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize("half", ["pre", "prompt", "post"])
@pytest.mark.parametrize(
    ("deed", "kind", "words"),
    [
        ("segfault", ProcessorFailed, "crashed (SIGSEGV)"),
        ("abort", ProcessorFailed, "crashed (SIGABRT)"),
        ("leave", ProcessorFailed, "ended its process (exit code 0)"),
        ("killed", OutOfMemory, "was killed"),
        ("shut", ProcessorFailed, "closed its connection"),
        ("exit", ProcessorFailed, "SystemExit"),
        ("hog", ProcessorFailed, "more memory for this input than the limit of 256 MiB"),
        ("claim_the_device", ProcessorFailed, "as if it were the engine"),
    ],
)
def test_a_process_that_ends_fails_its_job_with_the_reason_and_no_other(
    pool: IOPool, work: Work, tmp_path: Path, half: str, deed: str, kind: type[PenstockError], words: str
) -> None:
    neighbour = replace(work, folder=tmp_path / "neighbour")
    with pool.open(neighbour, check=nothing, say=lambda _: None) as beside:
        first = next(beside.prepared.prompts)
        error = error_of(pool, work, **{half: deed})
        rest = [Output(first.data), *echo(beside.prepared.prompts)]
        assert beside.finish(iter(rest)).result.text == "12"
    assert type(error) is kind
    assert words in error.detail
    if deed in ("segfault", "abort", "leave", "killed"):
        assert error.detail.split("while ")[1].startswith("making the result" if half == "post" else "reading")
    assert run(pool, work)["sum"] == 12


@pytest.mark.parametrize("half", ["pre", "prompt", "post"])
def test_a_process_that_hangs_is_ended_after_its_models_time(
    pool: IOPool, work: Work, tmp_path: Path, half: str
) -> None:
    hasty = replace(work, model=MODEL.model_copy(update={"io_timeout_s": 0.3}))
    error = error_of(pool, hasty, folder=str(tmp_path), **{half: "hang"})
    assert isinstance(error, ProcessorFailed)
    assert "did not respond for 0.3 s" in error.detail
    assert run(pool, work)["sum"] == 12


@pytest.mark.parametrize("half", ["pre", "prompt"])
def test_a_decode_that_takes_too_long_for_its_file_is_ended_and_the_file_is_blamed(
    pool: IOPool, work: Work, half: str
) -> None:
    error = error_of(pool, work, **{half: "decode_for_ever"})
    assert isinstance(error, MediaUnreadable)
    assert "takes far longer to decode" in error.detail
    assert run(pool, work)["sum"] == 12


@pytest.mark.parametrize("half", ["pre", "prompt", "post"])
def test_a_cancel_ends_a_process_that_hangs_at_once(pool: IOPool, work: Work, tmp_path: Path, half: str) -> None:
    canceled = threading.Event()

    def check() -> None:
        if (tmp_path / "hanging").exists():
            canceled.set()
            raise Canceled

    with pytest.raises(Canceled):
        run(pool, work, check, folder=str(tmp_path), **{half: "hang"})
    assert canceled.is_set()
    assert run(pool, work)["sum"] == 12


@pytest.mark.breadth(every=2)
@pytest.mark.parametrize("deed", ["garbage", "too_much", "lie", "nowhere", "descriptor", "again"])
@pytest.mark.parametrize("half", ["pre", "post"])
def test_nonsense_from_a_process_fails_its_job(pool: IOPool, work: Work, half: str, deed: str) -> None:
    error = error_of(pool, work, **{half: deed})
    assert isinstance(error, ProcessorFailed)
    assert "invalid message" in error.detail
    assert run(pool, work)["sum"] == 12


def fill(number: int) -> dict[str, Any]:
    """Return the values of an output."""
    return {"x": np.full(4, number, np.float32), "number": np.array(number)}


def test_outputs_that_are_ready_come_in_order_and_an_error_does_not_overtake_them(pool: IOPool, work: Work) -> None:
    """Save what they made, so that another attempt goes on behind them."""
    saved = {}

    class Kept(NoCheckpoints):
        def save(self, name: str, path: Path) -> None:
            saved[name] = path.read_text()

    def outputs(prompts: Iterator[Prompt]) -> Iterator[Output]:
        for number, _ in zip(range(20), prompts, strict=False):
            yield Output(fill(number))
        raise DeviceLost("gone")

    said: list[str] = []
    saving = replace(work, input={"prompts": 100, "save": True})
    with (
        pytest.raises(DeviceLost, match="gone"),
        pool.open(saving, check=nothing, say=said.append, checkpoints=Kept()) as session,
    ):
        session.finish(outputs(session.prepared.prompts))
    assert "".join(said).split() == [str(number) for number in range(20)]
    assert saved == {f"probe/{number}": str(4.0 * number) for number in range(20)}
    assert run(pool, work)["sum"] == 12


def test_a_process_makes_prompts_in_order_until_one_fails(pool: IOPool, work: Work) -> None:
    with pool.open(replace(work, input={"prompts": 50, "fails_at": 30}), check=nothing, say=lambda _: None) as session:
        found = []
        with pytest.raises(InvalidInput, match="prompt 30"):
            found.extend(prompt.data["number"] for prompt in session.prepared.prompts)
        assert found == list(range(30))
    assert run(pool, work)["sum"] == 12


def test_a_process_makes_one_prompt_ahead_while_nobody_takes_it(pool: IOPool, work: Work, tmp_path: Path) -> None:
    taken = 5
    asked = {"prompts": 60, "folder": str(tmp_path)}
    with pool.open(replace(work, input=asked), check=nothing, say=lambda _: None) as session:
        assert [next(session.prepared.prompts).data["number"] for _ in range(taken)] == list(range(taken))
        wait_for((tmp_path / f"made-{taken}").exists, "the process makes no prompt ahead")
    assert len(list(tmp_path.glob("made-*"))) == taken + 1


class Later:
    """A worker that writes a file's ranges after the first half."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, list[tuple[int, int]], bool]] = []

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:
        raise NotImplementedError

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool) -> None:
        self.asked.append((reference, list(ranges), later))


@pytest.mark.parametrize("prompts", [1, 2])
def test_prompts_see_the_ranges_that_came_after_the_first_half(
    pool: IOPool, work: Work, tmp_path: Path, prompts: int
) -> None:
    (path := tmp_path / "media.txt").write_text("holes")
    later, told = Later(path), dict[str, Any](text="media://x", prompts=prompts, late=True)
    late = replace(work, input=told, media={"media://x": LocalMedia(path, None, partial=True)}, requests=later)
    with pool.open(late, check=nothing, say=lambda _: None) as session:
        assert later.asked == [("media://x", [(0, 5)], True)]
        path.write_text("there")
        assert [prompt.data["note"] for prompt in session.prepared.prompts] == ["there"] * prompts


@pytest.mark.parametrize("deed", ["link", "foreign", "nothing", "save_foreign"])
def test_only_plain_files_of_the_jobs_folder_become_artifacts_and_checkpoints(
    pool: IOPool, work: Work, tmp_path: Path, deed: str
) -> None:
    (tmp_path / "secret").write_text("of somebody else")
    error = error_of(pool, work, post=deed, folder=str(tmp_path))
    assert isinstance(error, ProcessorFailed)
    assert ("what an IO process may not (PermissionError)" if deed == "link" else "artifact") in error.detail


def test_files_behind_a_link_in_the_place_of_the_jobs_folder_become_no_artifacts(
    without_landlock: IOPool, work: Work, tmp_path: Path
) -> None:
    """Landlock lets no process make links."""
    outside, room = tmp_path / "outside" / "artifacts", tmp_path / "room"
    outside.mkdir(parents=True)
    room.mkdir()
    (outside / "secret").write_text("of somebody else")
    (room / "job").symlink_to(outside.parent)
    folder = room / "job" / "artifacts"
    linked = replace(work, folder=folder, room=room)
    assert "not a plain file" in error_of(without_landlock, linked, post="foreign", folder=str(folder)).detail


def test_a_link_in_the_place_of_a_medium_opens_no_file_to_the_next_process(
    single: IOPool, work: Work, tmp_path: Path
) -> None:
    """A process may change its room: a medium that lies there is what the room lets it be."""
    room, outside = tmp_path / "room", tmp_path / "outside"
    room.mkdir()
    outside.write_text("of another tenant")
    (room / "media").symlink_to(outside)
    linked = replace(work, folder=room / "job", room=room, media={"media://1/a": LocalMedia(room / "media")})
    assert "may not (PermissionError)" in error_of(single, linked, text="media://1/a").detail
    (room / "media").unlink()
    (room / "media").write_text("its own")
    assert run(single, linked, text="media://1/a")


def test_a_medium_beside_the_room_may_be_read_also_through_a_link(pool: IOPool, work: Work, tmp_path: Path) -> None:
    room, outside = tmp_path / "room", tmp_path / "outside"
    room.mkdir()
    outside.write_text("of the user")
    (tmp_path / "link").symlink_to(outside)
    linked = replace(work, folder=room / "job", room=room, media={"media://1/a": LocalMedia(tmp_path / "link")})
    assert run(pool, linked, text="media://1/a")


def test_a_file_that_the_sandbox_refuses_is_explained_in_words(pool: IOPool, work: Work) -> None:
    error = error_of(pool, work, pre="peek", folder=str(Path(__file__).parents[2]))
    assert isinstance(error, ProcessorFailed)
    assert "may read libraries, the model's files and the job's media" in error.detail


def test_without_landlock_a_link_is_made_and_still_becomes_no_artifact(
    without_landlock: IOPool, work: Work, tmp_path: Path
) -> None:
    assert "not a plain file" in error_of(without_landlock, work, post="link", folder=str(tmp_path)).detail


def test_a_process_has_no_secrets_no_network_and_cannot_read_its_worker(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {"AWS_SECRET_ACCESS_KEY": "s1", "PENSTOCK_SECRET": "s2", "HF_TOKEN": "s3", "HOME": str(tmp_path)}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    pool = IOPool(1, OPTIONS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        try:
            run(pool, work, pre="tell", folder=str(tmp_path), port=port, worker=os.getpid())
        finally:
            pool.close()
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert not secrets.keys() & seen["environment"].keys()
    assert not set(secrets.values()) & set(seen["environment"].values())
    assert (seen["connect"] != "reached", seen["resolve"] != "reached") == (True, True)
    assert seen["worker"] == "PermissionError"
    assert seen["uid"] == os.getuid()


def test_the_folder_for_artifacts_is_there_before_a_process_begins(pool: IOPool, work: Work) -> None:
    """It runs on into the second half while the worker hears that the first is done."""
    there: list[bool] = []
    with pool.open(work, check=lambda: there.append(work.folder.is_dir()), say=lambda _: None):
        assert there
        assert all(there)


def test_the_same_process_runs_job_after_job(pool: IOPool, work: Work, tmp_path: Path) -> None:
    assert len({pid_of(pool, work, tmp_path) for _ in range(5)}) == 1


def test_a_process_serves_one_tenant_only(pool: IOPool, work: Work, tmp_path: Path) -> None:
    pids = [pid_of(pool, replace(work, tenant=tenant), tmp_path) for tenant in ("a", "b", "a", "b")]
    assert pids[:2] == pids[2:]
    assert len(set(pids)) == 2


def test_a_process_serves_one_model_only(pool: IOPool, work: Work, tmp_path: Path) -> None:
    other = replace(work, model=MODEL.model_copy(update={"revision": "2"}))
    pids = [pid_of(pool, of, tmp_path) for of in (work, other, work, other)]
    assert pids[:2] == pids[2:]
    assert len(set(pids)) == 2


def test_a_process_that_another_tenant_needs_no_more_gives_up_its_place(
    single: IOPool, work: Work, tmp_path: Path
) -> None:
    first = pid_of(single, replace(work, tenant="a"), tmp_path)
    assert pid_of(single, replace(work, tenant="b"), tmp_path) != first
    assert not psutil.pid_exists(first)


def test_a_process_ends_after_64_jobs(pool: IOPool, work: Work, tmp_path: Path) -> None:
    counted = replace(work, tenant="counted")
    first = pid_of(pool, counted, tmp_path)
    for _ in range(62):
        run(pool, counted)
    assert pid_of(pool, counted, tmp_path) == first
    assert pid_of(pool, counted, tmp_path) != first


def test_each_job_has_a_process_of_its_own_where_processes_are_not_used_again(work: Work, tmp_path: Path) -> None:
    with closing(IOPool(2, replace(OPTIONS, reuse=False))) as pool:
        assert len({pid_of(pool, work, tmp_path) for _ in range(3)}) == 3


def test_each_job_has_a_process_of_its_own_where_processes_cannot_be_refused(
    without_filter: IOPool, work: Work, tmp_path: Path
) -> None:
    assert len({pid_of(without_filter, work, tmp_path) for _ in range(3)}) == 3


@pytest.mark.breadth(but=("network-files-system calls-threads",))
@pytest.mark.parametrize("lacking", [[part] for part in sandbox.PARTS] + [list(sandbox.PARTS)], ids="-".join)
def test_jobs_run_where_a_kernel_or_container_lacks_parts_of_the_sandbox(work: Work, lacking: list[str]) -> None:
    with closing(IOPool(1, replace(OPTIONS, lacking=lacking))) as pool:
        assert not pool.entry(MODEL).problem
        assert not pool.server.parts & set(lacking)
        assert [run(pool, work)["sum"] for _ in range(2)] == [12, 12]


def test_a_processor_is_loaded_once_for_all_tenants(pool: IOPool, work: Work, tmp_path: Path) -> None:
    noted = replace(work, model=MODEL.model_copy(update={"options": {"note": str(tmp_path / "loaded")}}))
    for tenant in "abc":
        run(pool, replace(noted, tenant=tenant))
    assert (tmp_path / "loaded").read_text() == "x"


def test_a_processor_may_take_longer_to_load_than_to_work_on_a_job(pool: IOPool, work: Work, tmp_path: Path) -> None:
    slow = MODEL.model_copy(update={"io_timeout_s": 0.5, "options": {"load_s": 1.0}})
    assert run(pool, replace(work, model=slow))["sum"] == 12
    assert pool.dummy(slow, tmp_path / "dummy").model == slow


def test_a_processor_with_threads_is_loaded_in_each_process(pool: IOPool, work: Work) -> None:
    """A fork has no threads of its template: the processor would wait for them for ever."""
    threaded = replace(work, model=MODEL.model_copy(update={"options": {"thread": True}}))
    assert [run(pool, replace(threaded, tenant=tenant))["sum"] for tenant in "aab"] == [12, 12, 12]


def test_a_bad_input_costs_no_process(pool: IOPool, work: Work, tmp_path: Path) -> None:
    before = pid_of(pool, work, tmp_path)
    for half in ("pre", "prompt", "post"):
        error_of(pool, work, **{half: "refuse"})
    assert pid_of(pool, work, tmp_path) == before


def test_a_process_that_grew_is_replaced(single: IOPool, work: Work, tmp_path: Path) -> None:
    grown = replace(work, tenant="grown")
    pids = [pid_of(single, grown, tmp_path, leak_bytes=30 * MIB) for _ in range(12)]
    assert 3 <= len(set(pids)) <= 6, "each may keep a quarter of 256 MiB"


def test_an_idle_process_is_ended_after_a_while(work: Work, tmp_path: Path) -> None:
    pool = IOPool(1, OPTIONS, idle_s=0.1)
    try:
        pid = pid_of(pool, work, tmp_path)
        with suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(20)
        assert pid_of(pool, work, tmp_path) != pid
    finally:
        pool.close()


def test_a_process_that_died_while_it_was_idle_is_not_used(pool: IOPool, work: Work, tmp_path: Path) -> None:
    pid = pid_of(pool, work, tmp_path)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "it did not die")
    assert pid_of(pool, work, tmp_path) != pid


@pytest.mark.parametrize("generations", [1, 2], ids=["template", "fork server"])
def test_a_lost_template_or_fork_server_is_replaced(work: Work, tmp_path: Path, generations: int) -> None:
    pool = IOPool(1, OPTIONS)
    try:
        process = psutil.Process(pid_of(pool, work, tmp_path))
        process.parents()[generations - 1].kill()
        wait_for(
            lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE, "its fork is still there"
        )
        assert run(pool, work)["sum"] == 12
    finally:
        pool.close()


def test_processes_log_to_the_file_that_their_worker_named_last(work: Work, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with closing(IOPool(1, OPTIONS)) as pool, log.open("wb") as file:
        pool.server.preload("raster-segmentation")
        pool.server.log_to(file.fileno())
        error_of(pool, work, post="exit")
        assert '"processor.failed"' in log.read_text()


def test_more_jobs_than_processes_wait_their_turn(single: IOPool, work: Work, tmp_path: Path) -> None:
    sums: list[float] = []
    with single.open(work, check=nothing, say=lambda _: None) as session:
        other = threading.Thread(target=lambda: sums.append(run(single, replace(work, folder=tmp_path / "b"))["sum"]))
        other.start()
        assert session.finish(echo(session.prepared.prompts)).result.text == "12"
        assert sums == []
    other.join(20)
    assert sums == [12]


def test_a_closed_pool_takes_no_jobs_and_leaves_no_processes(work: Work, tmp_path: Path) -> None:
    pool = IOPool(2, OPTIONS)
    pid = pid_of(pool, work, tmp_path)
    server = psutil.Process(pid).ppid()
    pool.close()
    assert not psutil.pid_exists(pid)
    assert not psutil.pid_exists(server)
    with pytest.raises(Drained):
        run(pool, work)


def test_a_plugin_that_cannot_be_imported_is_a_problem_of_its_model(pool: IOPool) -> None:
    gone = MODEL.model_copy(update={"name": "gone", "processor": "gone"})
    assert "tests.no_such_module" in (pool.entry(gone).problem or "")


def test_a_plugin_that_crashes_when_it_is_imported_is_a_problem_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crashing_plugin.py").write_text("import ctypes; ctypes.string_at(0)")
    (tmp_path / "leaving_plugin.py").write_text("import os; os._exit(0)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plugins = {"crashing": "crashing_plugin:X", "leaving": "leaving_plugin:X"}
    pool = IOPool(1, replace(OPTIONS, processors={**OPTIONS.processors, **plugins}))
    try:
        problems = [pool.entry(MODEL.model_copy(update={"processor": name})).problem or "" for name in plugins]
        assert "SIGSEGV" in problems[0]
        assert "exit code 0" in problems[1]
        assert pool.entry(MODEL).problem is None
    finally:
        pool.close()


def test_a_plugin_that_hangs_while_it_is_loaded_is_a_problem_of_its_model(pool: IOPool) -> None:
    hanging = MODEL.model_copy(update={"options": {"hang": True}, "io_timeout_s": 0.3})
    assert "did not respond for 0.3 s" in (pool.entry(hanging).problem or "")


def test_the_check_of_a_plugin_that_hangs_can_be_ended(pool: IOPool) -> None:
    def drained() -> None:
        if pool.server.lost or time.monotonic() > begun + 0.3:
            raise Drained

    begun = time.monotonic()
    with pytest.raises(Drained):
        pool.entry(MODEL.model_copy(update={"options": {"hang": True}}), check=drained)


def test_a_crash_while_a_processor_is_loaded_is_called_that(pool: IOPool, work: Work) -> None:
    assert (pool.entry(CRASHING).problem or "").endswith("crashed (SIGSEGV) while loading the processor")
    error = error_of(pool, replace(work, model=CRASHING))
    assert error.detail.endswith("crashed (SIGSEGV) while loading the processor")


@pytest.mark.parametrize("deed", ["fork", "fork_detached"])
def test_where_processes_cannot_be_refused_they_end_with_the_job(
    without_filter: IOPool, work: Work, tmp_path: Path, deed: str
) -> None:
    run(without_filter, work, pre=deed, folder=str(tmp_path))
    assert not psutil.pid_exists(int((tmp_path / "forked").read_text()))


@pytest.mark.parametrize(("of", "kind"), [("single", ProcessorFailed), ("without_filter", OutOfMemory)])
def test_a_plugin_that_kills_its_group_kills_itself_at_most(
    request: pytest.FixtureRequest, work: Work, of: str, kind: type[PenstockError]
) -> None:
    pool: IOPool = request.getfixturevalue(of)
    server = pool.server.pid
    assert isinstance(error_of(pool, work, pre="kill_group"), kind)
    assert run(pool, work)["sum"] == 12
    assert pool.server.pid == server


@pytest.mark.breadth(but=("9",))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_leaves_no_processes_even_hanging_ones(tmp_path: Path, how: signal.Signals) -> None:
    script = "import sys; from tests.integration.test_io_processes import hang_until_killed as f; f(sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=Path(__file__).parents[2]) as worker:
        wait_for(lambda: (tmp_path / "hanging").exists(), "the job never began")
        family = psutil.Process(worker.pid).children(recursive=True)
        assert len(family) == 3, "the fork server, the template, and the IO process"
        worker.send_signal(how)
        worker.wait(20)
    _, left = psutil.wait_procs(family, timeout=20)
    assert left == []


def hang_until_killed(folder: str) -> None:
    work = Work(MODEL, {"pre": "hang", "folder": folder}, {}, Path(folder, "artifacts"), room=Path(folder))
    with IOPool(1, OPTIONS).open(work, check=nothing, say=print):
        raise AssertionError("a processor that hangs came back")


def pid_of(pool: IOPool, work: Work, folder: Path, **input: Any) -> int:  # noqa: A002
    run(pool, work, post="tell", folder=str(folder), **input)
    return int(json.loads((folder / "seen.json").read_text())["pid"])
