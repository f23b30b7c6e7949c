"""Processing keeps the same promises to a job in a thread and in an IO process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import (
    Canceled,
    InputError,
    InvalidInput,
    ModelUnavailable,
    ObjectStoreUnavailable,
    OutOfMemory,
    ProcessorFailed,
)
from penstock.intake.local_media import LocalMedia
from penstock.models import Limits, Model
from penstock.processors.base import Output, Prompt
from penstock.processors.registry import Registry
from penstock.workers.artifacts import MAX_PREVIEW_BYTES, Preview
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import InThread, Processed, Processing, Work
from penstock.workers.retry_policy import to_penstock_error
from tests.support.probe_processor import Probe

MODEL = Model(name="probe", title="Probe", runner="fake", processor="probe", source=".", revision="1")
MIB = 2**20


def in_thread() -> Processing:
    return InThread(Registry().register("probe", Probe))


def in_processes() -> Processing:
    return IOPool(2, ForkOptions(512 * MIB, processors={"probe": "tests.support.probe_processor:Probe"}))


@pytest.fixture(scope="module", params=[in_thread, in_processes])
def processing(request: pytest.FixtureRequest) -> Iterator[Processing]:
    make: Callable[[], Processing] = request.param
    processing = make()
    yield processing
    processing.close()


@pytest.fixture
def work(tmp_path: Path) -> Work:
    note = tmp_path / "note.txt"
    note.write_text("from the file")
    return Work(
        MODEL,
        {"text": "media://note"},
        {"media://note": LocalMedia(note, "etag")},
        tmp_path / "artifacts",
        room=tmp_path,
    )


class Saved:
    """Checkpoints in a folder, of a job of several attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Path] = {}
        self.asked: list[str] = []

    def found(self, prefix: str) -> Mapping[str, Path]:
        self.asked.append(prefix)
        return {name: path for name, path in self.files.items() if name.startswith(prefix)}

    def save(self, name: str, path: Path) -> None:
        self.folder.mkdir(exist_ok=True)
        self.files[name] = path.rename(self.folder / str(len(self.files)))
        path.touch()  # the processor's own to delete


class Away(Saved):
    """Checkpoints whose store does not answer."""

    def found(self, prefix: str) -> Mapping[str, Path]:
        raise ObjectStoreUnavailable(f"no answer for {prefix}")


def nothing() -> None:
    """Let it go on."""


def echo(prompts: Iterator[Prompt]) -> Iterator[Output]:
    return (Output(prompt.data) for prompt in prompts)


def run(
    processing: Processing, work: Work, answer: Callable[[Iterator[Prompt]], Iterator[Output]] = echo,
    said: list[str] | None = None, **input: Any,  # noqa: A002
) -> Processed:  # fmt: skip
    said = [] if said is None else said
    changed = replace(work, input={**work.input, **input})
    with processing.open(changed, check=nothing, say=said.append) as session:
        return session.finish(answer(session.prepared.prompts))


def test_a_medium_in_memory_is_a_file_for_whoever_asks_for_one(processing: Processing, work: Work) -> None:
    held = LocalMedia(work.folder / "media-1" / "media.txt", "etag", data=b"from memory")
    with processing.open(replace(work, media={"media://note": held}), check=nothing, say=lambda _: None) as session:
        assert {prompt.data["note"] for prompt in session.prepared.prompts} == {"from memory"}
    assert held.path.read_bytes() == b"from memory"


def test_a_job_becomes_a_result_and_files(processing: Processing, work: Work) -> None:
    said: list[str] = []
    with processing.open(work, check=nothing, say=said.append) as session:
        assert (session.prepared.count, session.prepared.cost, session.prepared.unit) == (3, 30, "probes")
        processed = session.finish(echo(session.prepared.prompts))
    assert (processed.result.text, processed.result.data) == (
        "12", {"sum": 12.0, "partial": 0, "same": True, "nine": 9, "max_items": None}
    )  # fmt: skip
    file = processed.files["sum.txt"]
    assert (file.path.read_text(), file.media_type, file.path.parent) == ("12.0", "text/plain", work.folder)
    assert "".join(said) == "0 1 2 "


@pytest.mark.parametrize(
    "where", [{"pre": "note"}, {"prompt": "note"}, {"prompt": "note", "prompts": 1}, {"post": "note"}]
)
def test_a_note_of_any_place_is_in_the_result(processing: Processing, work: Work, where: dict[str, Any]) -> None:
    for _ in range(2):  # the notes of one job are not those of the next
        assert run(processing, work, echo, **where).result.data["notes"] == ["The file is odd."]
    assert "notes" not in run(processing, work, echo).result.data


@pytest.mark.parametrize("size", [0, 1, 5, 2 * MIB])
def test_prompts_hold_what_the_processor_gave_them(processing: Processing, work: Work, size: int) -> None:
    seen: list[Prompt] = []

    def keep(prompts: Iterator[Prompt]) -> Iterator[Output]:
        for prompt in prompts:
            seen.append(prompt)
            prompt.data["x"][:] += 1  # the engine may write: they are its own
            yield Output(prompt.data)

    assert run(processing, work, keep, size=size).result.text == f"{size * 6:g}"
    assert [prompt.cost for prompt in seen] == [10, 10, 10]
    assert [prompt.data["note"] for prompt in seen] == ["from the file"] * 3
    for number, prompt in enumerate(seen):  # all are still there
        np.testing.assert_array_equal(prompt.data["x"], np.full(size, number + 1, np.float32))


def test_prompts_are_drawn_one_by_one_and_closed(processing: Processing, work: Work, tmp_path: Path) -> None:
    def two_of_many(prompts: Iterator[Prompt]) -> Iterator[Output]:
        yield Output(next(prompts).data)
        yield Output(next(prompts).data)

    assert run(processing, work, two_of_many, prompts=10**9, folder=str(tmp_path)).result.text == "4"
    assert (tmp_path / "closed").exists()


def test_what_is_shown_comes_through_as_it_is(processing: Processing, work: Work) -> None:
    shown: list[Preview] = []
    changed = replace(work, input={**work.input, "show": MAX_PREVIEW_BYTES})
    with processing.open(changed, check=nothing, say=lambda _: None, show=shown.append) as session:
        session.finish(echo(session.prepared.prompts))
    picture = [bytes([number * 4]) * MAX_PREVIEW_BYTES for number in range(3)]
    assert shown == [Preview("sum.txt", "image/x-probe", data) for data in picture]


def test_too_large_a_picture_fails_its_job_and_no_other(processing: Processing, work: Work) -> None:
    with pytest.raises(ProcessorFailed, match="has 64001 bytes; at most 64000 are allowed"):
        run(processing, work, show=MAX_PREVIEW_BYTES + 1)
    assert run(processing, work).result.text == "12"


def test_partial_outputs_come_through_as_such(processing: Processing, work: Work) -> None:
    def in_steps(prompts: Iterator[Prompt]) -> Iterator[Output]:
        for prompt in prompts:
            yield Output(prompt.data, partial=True)
            yield Output(prompt.data)

    result = run(processing, work, in_steps).result
    assert result.data is not None
    assert (result.data["sum"], result.data["partial"]) == (12.0, 3)


def test_a_job_without_prompts_has_a_result_too(processing: Processing, work: Work) -> None:
    assert run(processing, work, prompts=0).result.text == "0"


@pytest.mark.parametrize("half", ["pre", "prompt", "post"])
def test_what_is_wrong_with_the_input_is_said_in_the_processors_words(
    processing: Processing, work: Work, half: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        run(processing, work, **{half: "refuse"})
    assert caught.value.detail == "this is no input"
    assert [(issue.pointer, issue.detail) for issue in caught.value.errors] == [("/input/text", "not this one")]
    with pytest.raises(InputError) as other:
        run(processing, work, **{half: "refuse_in_own_words"})
    assert (other.value.code, other.value.detail) == ("invalid_input", "in its own words")
    assert run(processing, work).result.text == "12"


@pytest.mark.parametrize("half", ["pre", "prompt", "post"])
def test_a_fault_of_the_processors_own_is_its_failure(processing: Processing, work: Work, half: str) -> None:
    with pytest.raises(Exception, match=r"ZeroDivisionError|a secret") as caught:
        run(processing, work, **{half: "fail"})
    blamed = to_penstock_error(caught.value)
    assert isinstance(blamed, ProcessorFailed)
    assert "secret" not in blamed.detail
    assert run(processing, work).result.text == "12"


def test_an_input_that_does_not_fit_is_told_place_by_place(processing: Processing, work: Work) -> None:
    with pytest.raises(InvalidInput) as caught:
        run(processing, work, prompts="many", colour="red")
    assert {issue.pointer for issue in caught.value.errors} == {"/input/prompts", "/input/colour"}


def test_the_engines_error_comes_out_of_finish_and_the_next_job_is_fine(processing: Processing, work: Work) -> None:
    def out_of_memory(prompts: Iterator[Prompt]) -> Iterator[Output]:
        yield Output(next(prompts).data)
        raise OutOfMemory("of the device")

    with pytest.raises(OutOfMemory, match="of the device"):
        run(processing, work, out_of_memory)
    assert run(processing, work).result.text == "12"


def test_an_interruption_before_the_first_half_ends_the_job(processing: Processing, work: Work) -> None:
    def canceled() -> None:
        raise Canceled

    with pytest.raises(Canceled), processing.open(work, check=canceled, say=print):
        pytest.fail("it began all the same")


def test_a_session_that_is_left_early_leaves_nothing(processing: Processing, work: Work, tmp_path: Path) -> None:
    left = replace(work, input={"folder": str(tmp_path), "prompts": 5})
    with processing.open(left, check=nothing, say=print) as session:
        next(session.prepared.prompts)
    assert run(processing, work).result.text == "12"


def test_two_jobs_at_once_do_not_meet(processing: Processing, work: Work, tmp_path: Path) -> None:
    other = replace(work, input={"prompts": 2}, folder=tmp_path / "other")
    with (
        processing.open(work, check=nothing, say=print) as one,
        processing.open(other, check=nothing, say=print) as two,
    ):
        assert two.finish(echo(two.prepared.prompts)).result.text == "4"
        assert one.finish(echo(one.prepared.prompts)).result.text == "12"


def test_an_artifact_has_one_file(processing: Processing, work: Work) -> None:
    with pytest.raises(ProcessorFailed, match="twice"):
        run(processing, work, post="twice")
    assert run(processing, work).result.text == "12"


def test_a_dummy_is_work_that_runs(processing: Processing, tmp_path: Path) -> None:
    model = MODEL.model_copy(update={"limits": Limits(max_items=2)})
    work = processing.dummy(model, tmp_path / "dummy")
    assert work.media["media://dummy"].path.read_text() == "dummy"
    assert run(processing, work).result.text == "4"


def test_an_entry_has_the_schema_and_the_outputs(processing: Processing) -> None:
    entry = processing.entry(MODEL)
    assert entry.problem is None
    assert entry.input_schema["properties"]["prompts"] == {"default": 3, "title": "Prompts", "type": "integer"}
    assert [output.name for output in entry.outputs] == ["sum"]


def test_a_model_that_its_processor_does_not_take_has_a_problem(processing: Processing, work: Work) -> None:
    broken = MODEL.model_copy(update={"name": "broken", "options": {"broken": True}})
    assert "an option that it does not take" in (processing.entry(broken).problem or "")
    with pytest.raises(ModelUnavailable, match="an option that it does not take"):
        run(processing, replace(work, model=broken))


def test_a_processor_that_its_runner_cannot_serve_is_a_problem(processing: Processing) -> None:
    odd = MODEL.model_copy(update={"runner": "rapidocr", "options": {"sends": {"waves": "float32 (T)"}}})
    said = (
        "the runner 'rapidocr' cannot serve the processor 'probe': it does not give `notes` (list); it does not take "
        "`waves` (float32 (T)); it needs `image` (uint8 (H, W, 3)), which the processor does not always send. Runners "
        "for 'probe': none. Processors for 'rapidocr': "
    )
    assert (processing.entry(odd).problem or "").startswith(said)
    assert processing.entry(odd.model_copy(update={"runner": "fake"})).problem is not None
    assert processing.entry(odd.model_copy(update={"options": {}})).problem is None, "it declares nothing"


def test_a_warm_up_leaves_the_models_own_limits(processing: Processing, work: Work, tmp_path: Path) -> None:
    """The processor of a dummy is made for small limits, and jobs come after it."""
    small, own = (MODEL.model_copy(update={"limits": Limits(max_items=most)}) for most in (2, 5))
    processing.dummy(small, tmp_path / "dummy")
    data = run(processing, replace(work, model=own)).result.data
    assert data is not None
    assert data["max_items"] == 5


def test_a_processor_that_is_not_installed_is_named(processing: Processing) -> None:
    unknown = MODEL.model_copy(update={"processor": "nobody"})
    assert "'nobody'; installed:" in (processing.entry(unknown).problem or "")


def test_processes_are_other_processes(work: Work) -> None:
    processing = in_processes()
    try:
        assert run(processing, work, post="tell", folder=str(work.folder)).result.text == "12"
        assert f'"pid": {os.getpid()},' not in (work.folder / "seen.json").read_text()
    finally:
        processing.close()


def test_what_an_attempt_saved_is_found_by_the_next(processing: Processing, work: Work, tmp_path: Path) -> None:
    saving, saved = replace(work, input={"prompts": 5, "save": True}), Saved(tmp_path / "saved")

    def three(prompts: Iterator[Prompt]) -> Iterator[Output]:
        for _ in range(3):
            yield Output(next(prompts).data)
        raise OutOfMemory("of the device")

    with processing.open(saving, check=nothing, say=print, checkpoints=saved) as session:
        assert (session.prepared.count, session.prepared.done) == (5, 0)
        with pytest.raises(OutOfMemory):
            session.finish(three(session.prepared.prompts))
    assert {name: path.read_text() for name, path in saved.files.items()} == {
        "probe/0": "0.0", "probe/1": "4.0", "probe/2": "8.0",
    }  # fmt: skip
    with processing.open(saving, check=nothing, say=print, checkpoints=saved) as session:
        assert (session.prepared.count, session.prepared.done, session.prepared.cost) == (2, 3, 20)
        processed = session.finish(echo(session.prepared.prompts))
    assert processed.result.text == "40"
    assert saved.asked == ["probe/", "probe/"]


def test_a_processor_that_saves_runs_where_nothing_is_kept(processing: Processing, work: Work) -> None:
    assert run(processing, work, save=True).result.text == "12"
    assert run(processing, work, save=True).result.text == "12"


def test_a_store_that_is_away_ends_the_job_and_the_next_one_is_fine(
    processing: Processing, work: Work, tmp_path: Path
) -> None:
    saving = replace(work, input={"save": True})
    with (
        pytest.raises(ObjectStoreUnavailable, match="no answer for probe/"),
        processing.open(saving, check=nothing, say=print, checkpoints=Away(tmp_path)),
    ):
        pytest.fail("it began all the same")
    assert run(processing, work).result.text == "12"


def test_checkpoints_have_names_that_lead_nowhere_else(processing: Processing, work: Work) -> None:
    with pytest.raises(ProcessorFailed, match="invalid checkpoint name"):
        run(processing, work, post="save_elsewhere")
    assert run(processing, work).result.text == "12"


@pytest.mark.parametrize("odd", ["nan", "infinity", "array", "half"])
def test_a_result_that_is_not_json_is_the_processors_failure(processing: Processing, work: Work, odd: str) -> None:
    with pytest.raises(ProcessorFailed, match="the processor's result is not JSON"):
        run(processing, work, odd=odd)
    assert run(processing, work).result.text == "12"
