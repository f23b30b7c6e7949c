"""A part of a scene begins with its first rows: the others are fetched while the engine computes, or not at all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from penstock.config import Settings
from penstock.errors import Canceled, FetchFailed, MediaChanged, PenstockError, ProcessorFailed
from penstock.intake.guard import GuardedClient
from penstock.intake.local_media import LocalMedia
from penstock.intake.media import fetch_for_job, upload_key
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.geo.segmentation import RasterSegmentation
from penstock.processors.geo.tiling.strips import read_strip
from penstock.processors.numbers import as_floats
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.opening import open_store
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.io.session import WaitLimits
from penstock.workers.job_media import JobMedia, MediaRequests
from penstock.workers.processing import Work
from tests.support.geo.scenes import Files, by_value, make_model, pattern, write_scene

MIB = 2**20
#: A scene of four strips; a step of its file has the rows of about one.
HEIGHT, WIDTH = 4096, 8192
SCENE = "media://1/scene.tif"
REQUEST = {"scene": SCENE, "outputs": ["classes"]}
MODEL = make_model(tile_px=1024, halo_px=8, stride_px=8)
PROBE = Model(name="probe", title="Probe", runner="fake", processor="probe", source=".", revision="1", io_timeout_s=60)
PATIENCE_S = 120


@pytest.fixture(scope="module")
def pool() -> Iterator[IOPool]:
    options = ForkOptions(1024 * MIB, processors={"probe": "tests.support.probe_processor:Probe"})
    with closing(IOPool(1, options)) as pool:
        yield pool


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a scene as an upload."""
    folder = tmp_path_factory.mktemp("stored")
    put_scene(folder, 1)
    return folder


def put_scene(folder: Path, factor: int) -> ObjectStore:
    path, store = folder / "scene.tif", open_store((folder / "objects").as_uri(), Settings())
    write_scene(path, pattern(HEIGHT, WIDTH) // factor, tiled=True, blockxsize=256, blockysize=256)
    store.put_file(upload_key("acme", "1", "scene.tif"), path, content_type="image/tiff")
    return store


def nothing() -> None:
    """Let it go on."""


@dataclass
class Slowly:
    """Media of which rows below the middle are fetched only after an event that `late` awaits, or not."""

    media: MediaRequests
    late: Callable[[], None] = nothing
    #: Ranges of the fetches, in order.
    asked: list[tuple[int, int]] = field(default_factory=list)

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:
        raise NotImplementedError

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool) -> None:
        self.asked.append((ranges[0][0], ranges[-1][1]))
        if ranges[0][0] > HEIGHT * WIDTH // 2:
            self.late()
        self.media.fill(reference, ranges, later=later)


@dataclass
class Part:
    """The part of a job with all strips of the scene in a folder."""

    stored: Path
    folder: Path
    saved: dict[str, bytes] = field(default_factory=dict)

    def begin(self, late: Callable[[], None] = nothing) -> tuple[Slowly, Work]:
        settings = Settings()
        store = open_store((self.stored / "objects").as_uri(), settings)
        get = partial(
            fetch_for_job, store=store, tenant="acme", settings=settings, guard=GuardedClient(settings),
            limit_bytes=2**31,
        )  # fmt: skip
        media = JobMedia(get, self.folder / "room" / "job" / "media", lambda _: None, by_range=True)
        media.add(SCENE, by_range=False)
        slowly, made = Slowly(media, late), self.folder / "room" / "job" / "artifacts"
        return slowly, Work(
            MODEL, REQUEST, dict(media.files), made, room=made.parent.parent, requests=slowly, part=(0, 3)
        )

    def found(self, _prefix: str) -> dict[str, Path]:
        return {}

    def save(self, name: str, path: Path) -> None:
        self.saved[name.rpartition("/")[2]] = path.read_bytes()

    def run(self, pool: IOPool, work: Work, check: Callable[[], None] = nothing) -> None:
        with pool.open(work, check=check, say=lambda _: None, checkpoints=self) as session:
            session.finish(answers(session.prepared.prompts))


def answers(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output({"probability": by_value(as_floats(prompt).data["pixels"])}) for prompt in prompts)


@pytest.fixture(scope="module")
def expected(stored: Path) -> dict[str, bytes]:
    """Return the strips of a part whose file is whole."""
    processor = RasterSegmentation(MODEL)
    request = processor.request(scene=str(stored / "scene.tif"), outputs=("classes",))
    prepared = processor.pre_process_part(request, Files(), 0, 3)
    part = Part(stored, stored)

    class Strips:
        def path(self, name: str) -> Path:
            return stored / name

        def checkpoint(self, name: str, path: Path) -> None:
            part.save(name, path)

    processor.post_process(answers(prepared.prompts), prepared.context, Strips())  # type: ignore[arg-type]
    return part.saved


def pixels_of(strips: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """Return the pixels of strips; the digests of their plans differ with the etags of their files."""
    found = {}
    for name, data in strips.items():
        (folder / "strip").write_bytes(data)
        pieces = [(box, rasters["classes"]) for box, rasters, _, _ in read_strip(folder / "strip")]
        found[name] = b"".join(str(box).encode() + array.tobytes() for box, array in pieces)
    return found


@pytest.mark.breadth
def test_the_first_tiles_are_drawn_before_the_last_rows_are_there(
    pool: IOPool, stored: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    go_on, part = threading.Event(), Part(stored, tmp_path)
    slowly, work = part.begin(lambda: go_on.wait(PATIENCE_S) and None)
    with pool.open(work, check=nothing, say=lambda _: None, checkpoints=part) as session:
        first = [next(session.prepared.prompts) for _ in range(4)]
        assert not go_on.is_set()
        go_on.set()
        session.finish(answers(iter([*first, *session.prepared.prompts])))
    assert pixels_of(part.saved, tmp_path) == pixels_of(expected, tmp_path)
    assert len(part.saved) == 4
    assert slowly.asked == sorted(slowly.asked)
    assert len(slowly.asked) >= 4


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.breadth
def test_a_fetch_that_fails_in_the_middle_is_tried_again_and_saves_nothing_wrong(
    pool: IOPool, stored: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    part = Part(stored, tmp_path)
    with pytest.raises(FetchFailed, match="the server is away") as caught:
        part.run(pool, part.begin(failing(FetchFailed("the server is away")))[1])
    assert caught.value.retryable
    assert len(part.saved) < 4
    right = pixels_of(expected, tmp_path)
    assert pixels_of(part.saved, tmp_path).items() <= right.items()
    again = Part(stored, tmp_path / "again")
    again.run(pool, again.begin()[1])
    assert pixels_of(again.saved, tmp_path) == right


@pytest.mark.breadth
def test_a_file_that_changes_between_two_fetches_fails_the_part(
    pool: IOPool, expected: dict[str, bytes], tmp_path: Path
) -> None:
    put_scene(tmp_path, 1)
    part = Part(tmp_path, tmp_path)
    with pytest.raises(MediaChanged):
        part.run(pool, part.begin(lambda: put_scene(tmp_path, 2) and None)[1])
    assert len(part.saved) < 4
    assert pixels_of(part.saved, tmp_path).items() <= pixels_of(expected, tmp_path).items()


@pytest.mark.breadth
def test_a_cancel_during_a_fetch_ends_the_attempt(pool: IOPool, stored: Path, tmp_path: Path) -> None:
    begun, ended = threading.Event(), threading.Event()

    def late() -> None:
        begun.set()
        assert ended.wait(PATIENCE_S)

    def check() -> None:
        if begun.is_set():
            ended.set()
            raise Canceled

    part = Part(stored, tmp_path)
    with pytest.raises(Canceled):
        part.run(pool, part.begin(late)[1], check)
    assert len(part.saved) < 4


def probe(pool: IOPool, folder: Path, fills: list[tuple[int, int]], requests: MediaRequests) -> list[str]:
    """Return what a processor reads in a file, for each of its prompts."""
    told = {"text": "media://x", "prompts": 3, "late": True, "fills": fills}
    media = {"media://x": LocalMedia(folder / "media.txt", None, partial=True)}
    work = Work(PROBE, told, media, folder / "artifacts", room=folder, requests=requests)
    with pool.open(work, check=nothing, say=lambda _: None) as session:
        prompts = list(session.prepared.prompts)
        session.finish(Output(prompt.data) for prompt in prompts)
    return [prompt.data["note"] for prompt in prompts]


@dataclass
class Growing:
    """Media that write one letter more each time."""

    path: Path

    def fetch(self, reference: str, *, by_range: bool) -> LocalMedia:
        raise NotImplementedError

    def fill(self, reference: str, ranges: Sequence[tuple[int, int]], *, later: bool) -> None:
        assert (reference, list(ranges), later) == ("media://x", [(0, 5)], False)
        self.path.write_text(self.path.read_text() + "x")


def test_every_prompt_may_ask_for_ranges(pool: IOPool, tmp_path: Path) -> None:
    (tmp_path / "media.txt").write_text("")
    assert probe(pool, tmp_path, [(0, 5)], Growing(tmp_path / "media.txt")) == ["x", "xx", "xxx"]


def test_ranges_that_are_none_fail_the_job(pool: IOPool, tmp_path: Path) -> None:
    (tmp_path / "media.txt").write_text("")
    with pytest.raises(PenstockError, match="invalid range") as caught:
        probe(pool, tmp_path, [(5, 1)], Growing(tmp_path / "media.txt"))
    assert isinstance(caught.value, ProcessorFailed)
    assert probe(pool, tmp_path, [(0, 5)], Growing(tmp_path / "media.txt")) == ["x", "xx", "xxx"]


def test_silence_of_a_process_that_waits_for_its_worker_does_not_count() -> None:
    waits = True
    limits = WaitLimits(0.0, nothing, excused=lambda: waits)
    tick = limits.tick()
    for _ in range(3):
        tick()
    waits = False
    with pytest.raises(ProcessorFailed, match="did not respond"):
        deque(iter(tick, tick), maxlen=0)  # calls it until it raises
