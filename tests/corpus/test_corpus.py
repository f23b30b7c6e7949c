"""The corpus through one whole service: every input ends as the table says, and nothing else is disturbed."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from penstock.client import Client
from tests.corpus import disguises
from tests.corpus.bodies import JSON, NAMES
from tests.corpus.canary import Canary
from tests.corpus.cases import FIELDS, GOOD_SCENE, Case, all_cases, good_cases, last_cases
from tests.corpus.memory import Peaks
from tests.corpus.models import write_models
from tests.corpus.outcomes import Answer
from tests.corpus.table import SHARED_PICTURES
from tests.support.polling import wait_for
from tests.support.stack import SHARED, Stack, running

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(600)]

#: Bytes that an IO process may take on top of shared memory, in the service of these tests.
IO_BYTES = 1 * 2**30
#: Peak bytes of an IO process: all shared memory, 64 MB of decoded blocks, the largest image twice.
IO_PEAK_BYTES = 450 * 2**20
#: By how much the worker may grow over good jobs alone: it holds torch, and prompts on their way.
WORKER_GROWTH_BYTES = 200 * 2**20
#: Inputs per good one that follows them.
GOOD_EVERY = 4
CONFIG = """
models = ["{models}"]
io_memory_bytes = {io_bytes}
drop_poll_s = 0.5

[[drops]]
name = "inbox"
bucket = "{bucket}"
prefix = "in/"
model = "one-band"
input = {{ bands = [1], outputs = ["stats"] }}
output_prefix = "out/"
"""


class Result(NamedTuple):
    """An input and how it ended."""

    case: Case
    answer: Answer


@dataclass(frozen=True)
class Run:
    """All inputs with how they ended, by name, and what was seen meanwhile."""

    stack: Stack
    bucket: Path
    worker: int
    #: The worker's own before the first bad input, its peak.
    worker_bytes: int
    peaks: Peaks
    results: Mapping[str, Result]


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canary]:
    """Return a sound scene that nobody may open and an address that nobody may call."""
    file = tmp_path_factory.mktemp("canary") / "canary.tif"
    file.write_bytes(disguises.sound())
    watched = Canary(file)
    yield watched
    watched.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, canary: Canary) -> Iterator[Run]:
    """Send all inputs, then wait for their ends."""
    folder = tmp_path_factory.mktemp("corpus")
    bucket = folder / "bucket"
    (bucket / "in").mkdir(parents=True)
    config = CONFIG.format(models=write_models(folder / "models"), io_bytes=IO_BYTES, bucket=bucket.as_uri())
    with running(folder / "data", config=config) as stack, stack.client() as client, Sender(stack, client) as sender:
        wait_for(lambda: all(model.raw["ready"] for model in client.models()), "the models are not ready")
        sender.results(last_cases())  # everything is loaded and has run once
        worker = stack.pid("worker")
        with Peaks(worker) as peaks:
            wait_for(lambda: peaks.processes > 1, "nothing is measured")
            before = peaks.worker_bytes
            put_drop(bucket, canary)
            cases = all_cases(canary.file, canary.url)
            results = sender.results(with_good_ones(cases))
            results |= sender.results(last_cases())
            wait_for(lambda: (bucket / "out" / "beside.tif.done.json").exists(), "the dropped scene is not done")
        yield Run(stack, bucket, worker, before, peaks, results)


def case_names() -> list[str]:
    """Return the name of every input for a test of its own."""
    return [case.name for case in all_cases(Path("canary"), "http://canary/")]


@pytest.mark.parametrize("name", case_names())
def test_every_input_ends_as_the_table_says(run: Run, name: str) -> None:
    case, answer = run.results[name]
    case.outcome.check(answer)


def test_good_jobs_in_between_and_afterwards_are_right(run: Run) -> None:
    good = [result for name, result in run.results.items() if name.startswith(("good", "last"))]
    assert len(good) > len(run.results) // 6
    for case, answer in good:
        case.outcome.check(answer)


def test_nothing_died_and_nothing_was_tried_twice(run: Run) -> None:
    assert run.stack.pid("worker") == run.worker
    jobs = [answer.job for _, answer in run.results.values() if answer.job is not None]
    assert {job.raw["attempt"] for job in jobs} == {1}
    assert not [
        job.id for job in jobs if job.error and job.error.code in ("processor_failed", "worker_lost", "internal")
    ]


def test_memory_stayed_within_its_limits(run: Run) -> None:
    assert run.peaks.io_bytes < IO_PEAK_BYTES
    assert run.peaks.worker_bytes - run.worker_bytes < WORKER_GROWTH_BYTES


@pytest.mark.usefixtures("run")
def test_no_file_was_opened_and_nobody_was_called(canary: Canary) -> None:
    assert (canary.times_opened(), canary.times_called()) == (0, 0)
    canary.file.read_bytes()
    socket.create_connection(canary.address).close()
    assert (canary.times_opened(), canary.times_called()) == (1, 1), "it would not have been seen"


def test_of_what_lies_beside_a_scene_only_its_mask_its_metadata_and_its_place_are_read(run: Run) -> None:
    [stats] = run.bucket.glob("out/**/stats.json")
    told = json.loads(stats.read_text())
    assert (told["valid_pixels"], told["nodata_pixels"]) == (0, 64 * 64)  # the mask hides all
    assert [told["radiometry"][name] for name in ("scale", "source", "nodata", "mask")] == [
        3, "file", 7, "nodata, external mask",
    ]  # fmt: skip
    assert len(list(run.bucket.glob("out/**/*.done.json"))) == 1, "a neighbour became a job"


@pytest.mark.parametrize("name", [name for name, (_, kept) in NAMES.items() if isinstance(kept, str)])
def test_of_names_only_what_is_harmless_is_kept(run: Run, name: str) -> None:
    _, answer = run.results[f"name that {name}"]
    assert answer.job is not None
    assert answer.job.raw["input"]["scene"].rpartition("/")[2] == NAMES[name][1]


def test_the_shared_data_was_there() -> None:
    if not SHARED.is_dir():
        pytest.skip("needs the shared data beside the checkout, ../shared/data: sounds, photographs and odd scenes")
    assert not set(SHARED_PICTURES) ^ {path.name for kind in ("photo", "edge") for path in (SHARED / kind).iterdir()}


def test_many_inputs_were_tried(run: Run, record_property: Callable[[str, object], None]) -> None:
    ends = Counter(_end(result) for name, result in run.results.items() if not name.startswith(("good", "last")))
    told = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    peaks = f"an IO process took {run.peaks.io_bytes >> 20} MiB at most, the worker {run.peaks.worker_bytes >> 20} MiB"
    record_property("figures", f"corpus: {ends.total()} inputs, {told}; {peaks}")
    assert ends.total() >= 500


def _end(result: Result) -> str:
    answer = result.answer
    if answer.job is None:
        return "refused"
    return "right" if answer.job.succeeded else "failed"


class Sender:
    """Sends inputs as they are, whatever a careful client would say to them."""

    def __init__(self, stack: Stack, client: Client) -> None:
        self._client = client
        self._http = httpx2.Client(base_url=stack.url, timeout=60)
        #: The references of what was uploaded, by name and bytes.
        self._uploaded: dict[tuple[str, bytes], str] = {}

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def results(self, cases: Iterable[Case]) -> dict[str, Result]:
        """Send inputs, and then wait for the ends of all jobs that were made of them."""
        sent = [(case, self._send(case)) for case in cases]
        return {case.name: Result(case, self._answer(response)) for case, response in sent}

    def _send(self, case: Case) -> httpx2.Response:
        if case.body is not None:
            return self._post("/v1/jobs", case.body)
        assert case.make is not None
        answer = self._upload(case.file, case.make())
        if isinstance(answer, httpx2.Response):
            return answer
        media = {case.beside: answer, **self._good_scene()} if case.beside else FIELDS[case.model](answer)
        body = {"model": case.model, "input": {**media, **case.input}, **case.job}
        return self._post("/v1/jobs", json.dumps(body).encode())

    def _answer(self, response: httpx2.Response) -> Answer:
        if response.status_code not in (200, 202):
            assert response.headers["content-type"] == "application/problem+json", response.text
            return Answer(response.status_code, problem=response.json())
        return Answer(response.status_code, job=self._client.wait(response.json()["id"]))

    def _good_scene(self) -> Mapping[str, Any]:
        return FIELDS[GOOD_SCENE.model](str(self._upload(GOOD_SCENE.file, disguises.sound())))

    def _upload(self, name: str, data: bytes) -> str | httpx2.Response:
        if (known := self._uploaded.get((name, data))) is not None:
            return known
        wanted = {"filename": name, "size_bytes": len(data)}
        granted = self._post("/v1/uploads", json.dumps(wanted).encode())
        if granted.status_code != 201:
            return granted
        upload = granted.json()
        self._http.put(upload["url"], content=data, headers=upload["headers"]).raise_for_status()
        self._uploaded[name, data] = upload["media"]
        return str(upload["media"])

    def _post(self, path: str, body: bytes) -> httpx2.Response:
        return self._http.post(path, content=body, headers={"content-type": JSON})


def put_drop(bucket: Path, canary: Canary) -> None:
    """Put a scene and what lies beside it into the folder that is watched, the scene last."""
    for name in sorted(disguises.BESIDE, key=lambda name: name == "beside.tif"):
        (bucket / "in" / name).write_bytes(disguises.BESIDE[name](canary.file, canary.url))


def with_good_ones(cases: list[Case]) -> Iterator[Case]:
    """Yield the inputs, and after ever so many the next is a good job of the same model."""
    good = {case.model: case for case in good_cases()}
    for number, case in enumerate(cases):
        yield case
        if number % GOOD_EVERY == 0 and case.model in good:
            yield replace(good[case.model], name=f"{good[case.model].name} after {case.name}")
