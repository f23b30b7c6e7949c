"""Functions as models: each kind of value in and out, and functions that misbehave, in processes of their own."""

from __future__ import annotations

import os
import socket
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image

import penstock
from penstock.catalogue.functions import function_records
from penstock.errors import Canceled, ConfigError, InvalidInput, InvalidRequest, ModelUnavailable, ProcessorFailed
from penstock.functions.nested import CALL, flat, nested
from penstock.functions.wire import Closed
from penstock.intake.submissions import check_input
from penstock.jobs import Progress
from penstock.local.library import Result
from penstock.models import Limits
from penstock.processors.base import Prompt
from penstock.processors.functions.codecs import document
from penstock.processors.video.reading import read_timeline
from penstock.processors.video.writing import open_video_writer
from penstock.workers.engine.base import Done
from penstock.workers.engine.function.process import ModelProcess
from penstock.workers.engine.function.runner import FunctionRunner, start_of
from tests.support.pdf import write_pdf
from tests.support.polling import wait_for

FILE = Path(__file__).parents[1] / "support" / "functions" / "many.py"


@pytest.fixture(scope="module")
def engine() -> Iterator[penstock.Engine]:
    os.environ |= {"GIVEN_SECRET": "given", "OTHER_SECRET": "not given", "PENSTOCK_SECRET": "ours" * 8}
    try:
        with penstock.Engine(catalogue=[FILE]) as engine:
            yield engine
    finally:
        for name in ("GIVEN_SECRET", "OTHER_SECRET", "PENSTOCK_SECRET"):
            del os.environ[name]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (30, 40, 3), np.uint8)).save(path)
    return path


def pixels(result: Result, name: str = "image.png") -> Any:
    with Image.open(result.artifacts[name].path) as image:
        return np.asarray(image)


def test_the_record_of_a_function_names_its_runner_and_processor(engine: penstock.Engine) -> None:
    model, entry = engine.installation.servable("thumbnail")
    assert (model.runner, entry.processor, entry.title) == ("function", "function", "Shrink an image")


def test_json_of_all_kinds_arrives_as_the_annotations_say(engine: penstock.Engine) -> None:
    result = engine.run("plain", a=1, b=2, e=[1, 2], p={"x": 3}, colour="blue")
    assert result.data == {
        "a": 1, "b": 2.0, "c": False, "d": "x", "e": [1, 2], "p": ["Point", 3.0, 0.0], "colour": "BLUE",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "pointer"),
    [({"a": "1"}, "/input/a"), ({"a": 1, "d": "z"}, "/input/d"), ({}, "/input"), ({"a": 1, "q": 1}, "/input")],
)
def test_input_that_does_not_fit_is_refused_at_its_place(
    engine: penstock.Engine, given: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        engine.run("plain", input=given)
    assert [issue.pointer for issue in raised.value.errors] == [pointer]


def test_an_image_goes_in_and_out(engine: penstock.Engine, picture: Path) -> None:
    result = engine.run("thumbnail", image=picture, size=16)
    with Image.open(picture) as image:
        np.testing.assert_array_equal(pixels(result), np.asarray(image.resize((16, 16))))
    with pytest.raises(InvalidInput, match="the function's parameters"):
        engine.run("thumbnail", image=picture, size=3)


def test_hundreds_of_images_go_in_and_out_of_one_call(tmp_path: Path) -> None:
    paths = [tmp_path / f"{at}.png" for at in range(300)]
    for at, path in enumerate(paths):
        Image.new("RGB", (2, 2), (at % 256, 0, 0)).save(path)
    with penstock.Engine(catalogue=[FILE], isolated=True) as engine:
        result = engine.run("inverted", images=paths)
        assert [pixels(result, f"image-{at + 1}.png")[0, 0, 0] for at in range(300)] == [
            255 - at % 256 for at in range(300)
        ]
        with pytest.raises(ProcessorFailed, match="its answer cannot be sent: 4,200 arrays or files in one call"):
            engine.run("inverted", images=paths, times=14)
        with pytest.raises(InvalidInput) as raised:
            engine.run("inverted", images=[paths[0]] * 4001)
        assert raised.value.errors[0].detail == "the value is too long"
        with pytest.raises(InvalidRequest) as refused:
            check_input(engine.installation.servable("inverted")[1], {"images": ["media://1/a.png"] * 4001})
        assert refused.value.errors[0].detail == "has 4001 items; at most 4000 are allowed"


def test_an_image_may_be_an_array(engine: penstock.Engine, picture: Path) -> None:
    with Image.open(picture) as image:
        wanted = np.repeat(np.asarray(image).mean(axis=2, keepdims=True), 3, 2).astype(np.uint8)
    np.testing.assert_array_equal(pixels(engine.run("grey", image=picture)), wanted)


def test_a_dataclass_of_an_answer_has_files_and_json(engine: penstock.Engine, picture: Path) -> None:
    result = engine.run("views", image=picture)
    assert result.data == {"small": {"width": 8, "height": 8}, "note": "RGB"}
    assert pixels(result, "small.png").shape == (8, 8, 3)


def test_sound_goes_in_at_its_rate_and_out(engine: penstock.Engine, tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 8000, "NONE", ""))
        file.writeframes((np.sin(np.arange(8000) / 20) * 8000).astype("<i2").tobytes())
    result = engine.run("louder", audio=path)
    with wave.open(str(result.artifacts["audio.wav"].path)) as file:
        assert file.getframerate() == 8000
        loud = np.frombuffer(file.readframes(8000), "<i2")
    assert abs(int(np.abs(loud).max()) - 16000) < 20


def test_a_video_goes_in_and_out(engine: penstock.Engine, tmp_path: Path) -> None:
    path = tmp_path / "film.mp4"
    with open_video_writer(path, (32, 48), 4) as writer:
        for number in range(8):
            writer.add(np.full((32, 48, 3), number * 30, np.uint8))
    result = engine.run("backwards", video=path)
    assert result.data == {"pictures": 4, "seconds": 2.0}
    assert read_timeline(result.artifacts["video.mp4"].path, Limits()).shape == (32, 48)


def test_a_table_goes_in_and_out_with_its_first_rows_in_the_answer(engine: penstock.Engine, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,x\n2,y\n3,z\n")
    result = engine.run("first_rows", table=path)
    rows = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    assert result.data == {"columns": ["a", "b"], "count": 2, "rows": rows}
    assert parquet.read_table(result.artifacts["table.parquet"].path).to_pylist() == rows


def test_a_document_goes_in_as_pages_and_out_as_pdf(tmp_path: Path) -> None:
    path = write_pdf(tmp_path / "a.pdf", ["One page", "Another"])
    with penstock.Engine(catalogue=[FILE], isolated=True) as engine:
        result = engine.run("turned", document=path)
        [first, _] = document.decode(result.artifacts["document.pdf"].path, {"dpi": 36}, Limits())["pages"]
    assert result.data is not None
    assert [page["text"].strip() for page in result.data["pages"]] == ["ONE PAGE", "ANOTHER"]
    assert first["image"].shape == (72, 72, 3)
    assert first["image"][10, 60, 0] > 200 > 50 > first["image"][10, 60, 1]  # the red half is on the other side now


def test_a_tensor_and_a_type_of_ones_own_go_in_and_out(engine: penstock.Engine, tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "t.npy", array)
    result = engine.run("doubled", tensor=tmp_path / "t.npy")
    np.testing.assert_array_equal(np.load(result.artifacts["tensor.npy"].path), array * 2)
    (tmp_path / "a.grid").write_text("1 2\n3 4")
    result = engine.run("transposed", grid=tmp_path / "a.grid")
    assert result.artifacts["grid.grid"].path.read_text() == "1 3\n2 4"


def test_answers_have_the_views_of_their_types(engine: penstock.Engine, picture: Path) -> None:
    assert engine.run("vector", text="four").data == {"vectors": [[4.0, 1.0]]}
    [box] = (engine.run("boxes", image=picture).data or {})["boxes"]
    assert box == {"label": "all", "score": 1.0, "box": [0.0, 0.0, 40.0, 30.0]}
    for name, form in (("vector", "vectors"), ("boxes", "boxes"), ("brightness", "labels"), ("first_rows", "rows")):
        assert engine.installation.servable(name)[1].views[0].form == form


def test_a_generator_yields_progress_text_and_files(engine: penstock.Engine) -> None:
    said = list[str]()
    result = engine.run("simulate", years=3, say=said.append)
    assert "".join(said) == result.text == "year 0 year 1 year 2 "
    assert {name: file.path.read_text() for name, file in result.artifacts.items()} == {
        "0.txt": "0", "1.txt": "1", "2.txt": "2",
    }  # fmt: skip


def test_progress_moves_the_bar(engine: penstock.Engine, tmp_path: Path) -> None:
    seen = list[tuple[float, float | None, str]]()

    def on_progress(_: object, progress: Progress) -> None:
        seen.append((progress.done, progress.total, progress.unit))
        if progress.done == 25:
            (tmp_path / "go on").touch()

    engine.run("steady", go_on=str(tmp_path / "go on"), on_progress=on_progress)
    assert (25, 100, "percent") in seen
    assert seen[-1] == (100, 100, "percent")


def test_items_of_many_jobs_share_a_call_and_each_gets_its_own(engine: penstock.Engine, tmp_path: Path) -> None:
    paths, answers = [], dict[int, Any]()
    for value in range(0, 240, 10):
        paths.append(tmp_path / f"{value}.png")
        Image.new("RGB", (50, 50), (value, value, value)).save(paths[-1])

    def ask(at: int) -> None:
        answers[at] = engine.run("brightness", images=[paths[at]]).data

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in range(len(paths)):
        [answer] = answers[at]["answers"]
        scores = {row["label"]: row["score"] for row in answer["labels"]}
        assert scores == pytest.approx({"bright": at * 10 / 255, "dark": 1 - at * 10 / 255})
        assert [row["score"] for row in answer["labels"]] == sorted(scores.values(), reverse=True)


def test_a_model_outlives_the_thread_that_loaded_it(engine: penstock.Engine) -> None:
    first = list[Any]()
    loading = threading.Thread(target=lambda: first.append(engine.run("counted", text="a").text))
    loading.start()
    loading.join()
    assert [*first, engine.run("counted", text="b").text] == ["a1", "b2"]


def test_async_calls_run_beside_each_other(engine: penstock.Engine) -> None:
    answers = list[str | None]()
    threads = [
        threading.Thread(target=lambda at=at: answers.append(engine.run("meet", name=f"a{at}", number=12).text))
        for at in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == sorted(f"A{at}" for at in range(12))


def test_an_error_of_the_code_is_the_models_and_its_place_is_the_operators(
    engine: penstock.Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ProcessorFailed, match="its function raised ZeroDivisionError") as raised:
        engine.run("divide", a=1, b=0)
    assert "many.py" not in raised.value.detail
    printed = capfd.readouterr()
    assert "dividing 1.0 0.0" in printed.out
    assert "many.py:" in printed.out + printed.err
    with pytest.raises(InvalidInput, match="'x' is no good"):
        engine.run("refuse", text="x")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("exit", "the exit status 3"),
        ("double free", "SIGABRT"),
        ("sys.exit", "its function raised SystemExit"),
    ],
)
def test_a_crash_ends_the_job_with_its_signal_and_the_next_job_works(
    engine: penstock.Engine, how: str, said: str
) -> None:
    with pytest.raises(ProcessorFailed, match=said):
        engine.run("crash", how=how)
    assert engine.run("crash", how="not").text == "alive"


def test_a_call_that_hangs_is_ended_when_its_job_is_canceled(engine: penstock.Engine) -> None:
    hanging = threading.Event()

    def check() -> None:
        if hanging.is_set():
            raise Canceled

    threading.Timer(1, hanging.set).start()
    with pytest.raises(Canceled):
        engine.run("crash", how="hang", check=check)
    assert engine.run("crash", how="not").text == "alive"


def test_of_a_call_that_crashes_only_the_job_that_does_it_fails(engine: penstock.Engine) -> None:
    engine.run("fragile", words=["loaded"])
    words, ends = ["a", "bb", "bad", "dddd", "ccccc", "bb"], dict[int, Any]()

    def ask(at: int) -> None:
        try:
            ends[at] = engine.run("fragile", words=[words[at]]).data
        except ProcessorFailed as error:
            ends[at] = error.detail

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(len(words))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "SIGABRT" in ends.pop(2)
    assert ends == {at: {"answers": [len(words[at])]} for at in (0, 1, 3, 4, 5)}


def test_there_is_no_network_but_the_named_hosts(engine: penstock.Engine, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ProcessorFailed, match="PermissionError"):
            engine.run("reach", port=port)
        with pytest.raises(ProcessorFailed, match="URLError"):
            engine.run("fetch", port=port)
        printed = capfd.readouterr()
        assert "say `network=[...]` in its decorator" in printed.out + printed.err
        assert engine.run("reach_this_machine", port=port).text == "connected"


def test_an_iterator_need_not_be_a_generator(engine: penstock.Engine) -> None:
    assert engine.run("gathered", number=3).text == "0 1 2 "


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os\nos._exit(0)", "its import ended with the status 0"),
        ("import penstock\ndef f(a: int -> str: ...", r"SyntaxError: .*\(file\.py:2\)$"),
        ("import penstock\npenstock.model(max_batch=0)", r"ValueError: `max_batch` .*\(file\.py:2\)$"),
        ("import penstock\n@penstock.model\ndef f(a: Imge) -> str: ...", r"NameError: .*\(file\.py:3\)$"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(tmp_path: Path, code: str, said: str) -> None:
    path = tmp_path / "file.py"
    path.write_text(code)
    with pytest.raises(ConfigError, match=said):
        function_records(path)


def test_the_process_has_its_secrets_and_no_others(engine: penstock.Engine) -> None:
    assert engine.run("variables").data == {"GIVEN_SECRET": "given", "OTHER_SECRET": None, "PENSTOCK_SECRET": None}


def test_a_secret_that_the_worker_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MISSING_KEY", raising=False)
    path = tmp_path / "asks.py"
    path.write_text(
        "import os, penstock\n@penstock.model(secrets='MISSING_KEY')\ndef ask() -> str:\n"
        "    return os.environ['MISSING_KEY']\n"
    )
    with penstock.Engine(catalogue=[path]) as engine:
        with pytest.raises(ModelUnavailable, match=r"'ask' needs MISSING_KEY, .* in the environment of the worker"):
            engine.run("ask")
        monkeypatch.setenv("MISSING_KEY", "given")
        assert engine.run("ask").text == "given"


def test_a_file_is_read_without_the_variables_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", "ours" * 8)
    path = tmp_path / "nosy.py"
    path.write_text(
        "import os, penstock\n@penstock.model(title=str(os.environ.get('PENSTOCK_SECRET')))\ndef f(a: int) -> int:\n"
        "    return a\n"
    )
    assert [record.title for record in function_records(path)] == ["None"]


def test_a_cancellation_that_meets_the_end_of_the_process_hurts_no_later_call() -> None:
    model = next(record for record in function_records(FILE) if record.name == "crash")
    canceled = threading.Event()

    def start() -> ModelProcess:
        process = start_of(model)()
        send = process.wire.send

        def sent(kind: str, value: Any = None, **fields: Any) -> None:
            if kind == "cancel":
                canceled.set()
                raise Closed
            send(kind, value, **fields)

        process.wire.send = sent  # type: ignore[method-assign]  # the process ends between two steps of the driver
        return process

    runner = FunctionRunner(model, start)
    try:
        hanging = runner.admit(Prompt(flat({"arguments": {"how": "hang"}}, CALL)))
        runner.step([hanging])
        wait_for(lambda: runner.awake(hanging), "the call does not begin")
        runner.drop(hanging)
        assert canceled.wait(30)
        later = runner.admit(Prompt(flat({"arguments": {"how": "not"}}, CALL)))
        wait_for(lambda: runner.free == 1, "the canceled call does not end")
        runner.step([later])
        wait_for(lambda: runner.awake(later), "there is no answer")
        [done] = runner.step([later])
        assert isinstance(done, Done)
        assert nested(done.output.data)["answer"]["parts"][""]["value"] == "alive"
    finally:
        runner.close()


def test_a_process_that_takes_too_much_memory_is_ended(engine: penstock.Engine) -> None:
    assert engine.run("hungry", megabytes=50).data == {"answer": 50 * 2**20}
    with pytest.raises(ProcessorFailed, match="took more than 419,430,400 bytes"):
        engine.run("hungry", megabytes=600)


def test_lines_are_bounded(engine: penstock.Engine, capfd: pytest.CaptureFixture[str]) -> None:
    assert engine.run("chatty", lines=20_000).data == {"answer": 20_000}
    lines = [line for line in capfd.readouterr().out.splitlines() if line.isdigit() or line.startswith("(")]
    assert lines[:3] == ["0", "1", "2"]
    assert lines[-1] == "(19000 more lines)"
    assert 900 < len(lines) <= 1001


def test_a_model_whose_load_aborts_says_so_with_its_last_lines(engine: penstock.Engine) -> None:
    for _ in range(2):
        with pytest.raises(ModelUnavailable, match="SIGABRT; its last lines: no weights here"):
            engine.run("broken", text="x")
    assert engine.run("size_of", path=FILE).data == {"answer": FILE.stat().st_size}
