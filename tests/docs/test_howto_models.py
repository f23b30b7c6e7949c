"""The how-to pages on models: every command and program in them is run."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from torch import nn

from penstock.processors.geo.read.gdal import rasterio
from penstock.processors.outputs import Sound, write_wav
from penstock.processors.video.writing import open_video_writer
from tests.support import vision
from tests.support.diffusion import a_painter
from tests.support.doc_pages import ROOT, Shell, blocks, digest
from tests.support.environments import an_environment
from tests.support.hub import a_wav2vec2, a_whisper, efficientnet, minilm, needs_stories
from tests.support.image_text_types import write_kind
from tests.support.multimodal import a_granite_vision
from tests.support.openai_server import FakeServer
from tests.support.prompted import DETECTORS, MASKERS
from tests.support.vllm_command import STARTED, vllm_command
from tests.support.vllm_plugins import DOUBLE, a_directory

PLUGIN = ROOT / "examples" / "plugin"
PHOTOS = ROOT.parent / "shared" / "data" / "photo"
needs_photos = pytest.mark.skipif(not PHOTOS.is_dir(), reason="needs ../shared/data/photo beside the checkout")

pytestmark = [pytest.mark.slow, pytest.mark.breadth, pytest.mark.timeout(900)]


@needs_stories
def test_serve_a_model(shell: Shell) -> None:
    minilm()
    for block in blocks("serve-a-model.md"):
        shell.take(block)

    made = {path.name for path in (shell.folder / "segments").iterdir()}
    assert made == {"mask.png", "overlay.png"}
    assert '"dimensions": 384' in (shell.folder / "embeddings.json").read_text()
    assert '"status": "succeeded"' in (shell.folder / "job.json").read_text()
    assert '"max_items":1000' in (shell.folder / "minilm.json").read_text()


def test_serve_your_function(shell: Shell) -> None:
    Image.new("RGB", (40, 30), "red").save(shell.folder / "photo.jpg")
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 3))
    shapes = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(network, (torch.zeros(2, 3, 64, 64),), dynamic_shapes=shapes)
    torch.export.save(exported, shell.folder / "flowers.pt2")
    for block in blocks("serve-your-function.md"):
        if block.language in ("bash", "python"):
            shell.take(block)
    with Image.open(shell.folder / "small" / "image.png") as image:
        assert image.size == (64, 64)
    assert (shell.folder / "years" / "years.csv").read_text() == "0\n1\n2"
    assert (shell.folder / "twice" / "recipe.recipe").read_text() == "flour=400\nmilk=1"
    classes = json.loads((shell.folder / "water" / "stats.json").read_text())["classes"]
    assert [(one["name"], one["percent"] > 10) for one in classes] == [("land", True), ("water", True)]


def test_rank_and_classify_texts(shell: Shell) -> None:
    for block in blocks("rank-and-classify-texts.md"):
        if block.language != "toml" or block.title:  # the record of a published model is fetched from the hub
            shell.take(block)

    answers = {name: json.loads((shell.folder / f"{name}.json").read_text()) for name in ("ranks", "scores", "classes")}
    best = answers["ranks"]["results"][0]
    assert best["relevance_score"] == max(row["score"] for row in answers["scores"]["data"])
    assert best["document"]["text"] in ("A cat sleeps.", "It rains.")
    assert [row["num_classes"] for row in answers["classes"]["data"]] == [2, 2]
    shown = json.loads((shell.folder / "vector.json").read_text())["data"][0]["embedding"]
    assert (len(shown), np.linalg.norm(shown)) == (8, pytest.approx(1, abs=1e-5))


def test_queue_before_a_server(shell: Shell) -> None:
    with FakeServer(key="sk-of-the-page") as server:
        shell.env["LLAMA_KEY"] = "sk-of-the-page"
        for block in blocks("queue-before-a-server.md"):
            shell.take(replace(block, code=block.code.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")))

    assert '"text": "Once upon a time"' in (shell.folder / "job.json").read_text()
    assert [body.get("top_k") for body in server.bodies] == [None, None, 3]


def test_generate_with_vllm(shell: Shell) -> None:
    # With doubles of vLLM and its command: `make test-vllm` has vLLM itself.
    a_directory(shell.folder / "llama")
    environment = an_environment(shell.folder / "ENV", DOUBLE, ROOT)
    with vllm_command(environment / "bin", environment / "bin" / "python") as started:
        shell.env |= {STARTED: str(started)}
        for block in blocks("generate-with-vllm.md"):
            shell.take(block)

    assert '"text": "Once upon a time"' in (shell.folder / "job.json").read_text()
    assert "--max-num-seqs 32 --gpu-memory-utilization 0.5 --max-model-len 8192" in started.read_text()


def test_caches(shell: Shell) -> None:
    minilm()
    for block in blocks("caches.md"):
        shell.take(block)

    first, second, one, two = (
        json.loads((shell.folder / f"{name}.json").read_text()) for name in ("first", "second", "one", "two")
    )
    assert (first["metrics"]["cached"], second["metrics"]["cached"]) == (0, 1)
    assert "batches" not in second["metrics"]
    assert first["output"]["json"] == second["output"]["json"]
    assert [one["metrics"]["encoder_hits"], one["metrics"]["encoder_misses"]] == [0, 2]
    assert [two["metrics"]["encoder_hits"], two["metrics"]["encoder_misses"]] == [1, 1]
    told = (shell.folder / "caches.txt").read_text()
    assert 'penstock_cache_lookups_total{cache="result",model="my-classifier",outcome="hit"} 1.0' in told
    assert 'penstock_cache_lookups_total{cache="encoder",model="minilm",outcome="miss"} 3.0' in told


@needs_stories
def test_send_tensors(shell: Shell) -> None:
    write_kind("idefics3", shell.folder / "my-eyes")
    Image.fromarray(np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3)).save(shell.folder / "cat.png")
    for block in blocks("send-tensors.md"):
        shell.take(block)

    here = json.loads((shell.folder / "here.json").read_text())["output"]["json"]["tensors"]["score"]
    served = json.loads((shell.folder / "job.json").read_text())["output"]["json"]["tensors"]["score"]
    assert here == served
    assert here["shape"] == [6, 1]
    score = np.load(shell.folder / "again" / "score.npy")
    np.testing.assert_array_equal(score, np.array(here["values"], np.float32))
    np.testing.assert_array_equal(load_file(shell.folder / "result" / "tensors.safetensors")["score"], score)
    story, same = (json.loads((shell.folder / name).read_text())["output"] for name in ("story.json", "same.json"))
    assert story["text"] == same["text"].lstrip()
    assert story["json"] == same["json"]
    seen, known = (json.loads((shell.folder / name).read_text())["output"] for name in ("seen.json", "same-seen.json"))
    assert seen == known
    assert seen["json"]["usage"]["completion_tokens"] > 0


def test_write_a_processor_and_a_runner(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> None:
    site = tmp_path_factory.mktemp("site")
    # What the page installs does not go into the environment that runs the tests, and nothing comes from elsewhere.
    shell.env |= {
        "PIP_TARGET": str(site), "PIP_UPGRADE": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONPATH": str(site),
    }  # fmt: skip
    page = [*blocks("write-a-processor.md"), *blocks("write-a-runner.md")]
    printed = {block.title: block.code for block in page if block.title}
    printed.pop("penstock.toml")
    assert printed == {name: (PLUGIN / name).read_text() for name in printed}
    package = "src/penstock_brightness"
    code = {f"{package}/{name}.py" for name in ("request", "processor", "runner")}
    assert set(printed) == {*code, "models.toml", "luminance.toml"}
    # The reader copies the folder; its README lists what the pages do not print.
    shutil.copytree(PLUGIN, shell.folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for block in page:
        shell.take(block)

    assert (shell.folder / "result" / "map-1.png").is_file()
    assert (shell.folder / "served" / "map-1.png").is_file()


def test_pictures(shell: Shell) -> None:
    made = {
        "my-depth": vision.a_depth_anything,
        "my-detector": vision.an_rt_detr,
        "my-panoptic": vision.a_mask2former,
        "my-clip": vision.a_clip,
        "my-owl": DETECTORS["owlv2"],
        "my-sam": MASKERS["sam"],
    }
    for name, make in made.items():
        make(shell.folder / name)
    for block in blocks("pictures.md"):
        shell.take(block)

    found = {folder: {path.name for path in (shell.folder / folder).iterdir()} for folder in ("depth", "segments")}
    assert found["depth"] >= {"depth.png", "depth.json", "preview.png", "values.safetensors"}
    assert found["segments"] >= {"mask.png", "overlay.png", "segments.json"}
    for name in ("depth.png", "depth.json", "preview.png"):
        assert digest(shell.folder / "served-depth" / name) == digest(shell.folder / "depth" / name)
    boxes = json.loads((shell.folder / "objects" / "boxes.json").read_text())
    assert len(boxes["objects"]) > 1
    assert (shell.folder / "served-objects" / "annotated.png").is_file()
    assert not (shell.folder / "served-objects" / "boxes.json").exists()
    labels = json.loads((shell.folder / "labels.json").read_text())
    assert "an empty street" in json.dumps(labels)
    assert '"status": "succeeded"' in (shell.folder / "job.json").read_text()
    assert (shell.folder / "words" / "annotated.png").is_file()
    masks = json.loads((shell.folder / "masks" / "masks.json").read_text())["masks"]
    assert [one["object"] for one in masks] == [0, 1]
    assert {path.name for path in (shell.folder / "outlined").iterdir()} == {"mask.tif", "masks.geojson"}


@needs_photos
def test_bring_a_classifier(shell: Shell) -> None:
    network = efficientnet()
    shown = {"cat.jpg": PHOTOS / "chelsea.png", "coffee.jpg": PHOTOS / "coffee.png"}
    for name, path in shown.items():
        shutil.copy(path, shell.folder / name)  # PNG by another name: real JPEG would change the pixels
    for block in blocks("bring-a-classifier.md"):
        shell.take(block)

    images = json.loads((shell.folder / "here.json").read_text())["output"]["json"]["images"]
    for image, scores in zip(images, scores_of(network, *shown.values()), strict=True):
        best = sorted(image["labels"], key=lambda label: label["id"])
        assert [label["id"] for label in best] == sorted(np.argsort(-scores)[:3])
        assert [label["score"] for label in best] == pytest.approx([scores[label["id"]] for label in best], abs=1e-5)
    cat, coffee = ({label["id"]: label["score"] for label in image["labels"]} for image in images)
    assert (set(cat), sum(cat.values()) > 0.9) == ({281, 282, 285}, True)
    assert coffee[967] > 0.9
    job = json.loads((shell.folder / "job.json").read_text())
    assert job["output"]["json"]["images"][0]["labels"][:3] == images[0]["labels"]


@torch.inference_mode()
def scores_of(network: nn.Module, *pictures: Path) -> npt.NDArray[np.float32]:
    """Return (pictures, classes) by EfficientNet-Lite's own forward pass, of pictures prepared as in its training."""
    pixels = []
    for path in pictures:
        image = Image.open(path).convert("RGB")
        width, height = (int(side * 256 / min(image.size)) for side in image.size)
        left, top = (width - 224) // 2, (height - 224) // 2
        cut = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + 224, top + 224))
        pixels.append((np.asarray(cut, np.float32) - 127) / 128)
    batch = torch.from_numpy(np.stack(pixels)).movedim(-1, 1)
    scores: npt.NDArray[np.float32] = network.eval()(batch).softmax(1).numpy()
    return scores


def test_bring_a_segmentation_model(shell: Shell) -> None:
    shutil.rmtree(shell.folder / "my-segmenter")  # the page makes its own
    for block in blocks("bring-a-segmentation-model.md"):
        shell.take(block)

    item = json.loads((shell.folder / "fields-item.json").read_text())
    assert item["properties"]["mlm:input"][0]["bands"] == ["green", "red", "nir"]
    assert {path.name for path in (shell.folder / "map").iterdir()} >= {"classes.tif", "polygons.fgb", "preview.png"}
    assert (shell.folder / "coast" / "classes.tif").is_file()
    assert {path.name for path in (shell.folder / "green").iterdir()} == {"values.tif", "preview.png", "stats.json"}


def test_read_text_in_pictures(shell: Shell) -> None:
    for block in blocks("read-text-in-pictures.md"):
        shell.take(block)

    assert (shell.folder / "read" / "annotated-1.png").is_file()
    assert (shell.folder / "parts" / "annotated-1.png").is_file()
    assert "Nobody was hurt." in json.loads((shell.folder / "job.json").read_text())["output"]["text"]


def test_tables(shell: Shell) -> None:
    for block in blocks("tables.md"):
        shell.take(block)

    plots = pq.read_table(shell.folder / "harvest" / "predictions.parquet").to_pylist()
    assert [plot["harvest"] for plot in plots] == [pytest.approx(10, abs=1e-3), None, pytest.approx(2, abs=1e-3)]
    assert plots[1]["plot"] == "007"
    found = json.loads((shell.folder / "harvest.json").read_text())["output"]["json"]
    assert (found["rows"], found["without_prediction"], found["columns"]) == (3, 1, ["harvest"])
    crops = (shell.folder / "crops" / "predictions.csv").read_text().splitlines()
    assert [row.rpartition(",")[2].strip('"') for row in crops] == ["crop", "rice", "oats"]
    lines = (shell.folder / "kinds" / "predictions.csv").read_text().splitlines()
    assert {line.rpartition(",")[2].strip('"') for line in lines[1:]} <= {"meadow", "field", "wood"}
    assert json.loads((shell.folder / "job.json").read_text())["output"]["json"]["rows"] == 2


def test_generate_images(shell: Shell) -> None:
    a_painter(shell.folder / "my-painter")
    for block in blocks("generate-images.md"):
        shell.take(block)

    with (
        Image.open(shell.folder / "wide" / "image-1.webp") as wide,
        Image.open(shell.folder / "preview.webp") as preview,
    ):
        assert (wide.size, preview.size) == ((96, 64), (64, 64))
    first, second = (shell.folder / "from-openai.txt").read_text().splitlines()
    assert first != second
    assert b64decode(first).startswith(b"\x89PNG")


def test_chat_with_pictures(shell: Shell) -> None:
    a_granite_vision(shell.folder / "my-eyes")
    for block in blocks("chat-with-pictures.md"):
        shell.take(block)

    usage = json.loads((shell.folder / "answer.json").read_text())["output"]["json"]["usage"]
    # Twice the photo: the whole of it in 4 x 4 patches, and enlarged in 6 x 8, of whose rows each has one token more.
    assert usage["prompt_tokens"] > 2 * (16 + 6 * 8 + 6)
    job = json.loads((shell.folder / "job.json").read_text())
    assert (job["status"], job["output"]["json"]["usage"]["completion_tokens"] > 0) == ("succeeded", True)
    # Bytes: a network with random weights says carriage returns, too.
    answer, streamed = ((shell.folder / name).read_bytes().decode() for name in ("answer.txt", "streamed.txt"))
    assert answer == streamed == job["output"]["text"] != ""


def test_vllm_plugins(shell: Shell) -> None:
    # With a double of vLLM and of TerraTorch's plugin: `make test-vllm` has both.
    an_environment(shell.folder / "ENV", DOUBLE)
    shapes = {"pixel_values": {"shape": [6, 128, 128]}}
    config = {"input": {"target": "pixel_values", "data": shapes}, "model": {"init_args": {}}}
    a_directory(shell.folder / "prithvi", pretrained_cfg=config)
    for block in blocks("vllm-plugins.md"):
        shell.take(block)

    with (
        rasterio.open(shell.folder / "result" / "data.tif") as made,
        rasterio.open(shell.folder / "scene.tif") as scene,
    ):
        assert (made.transform, made.shape, made.crs) == (scene.transform, scene.shape, scene.crs)
    assert digest(shell.folder / "result" / "data.tif") == digest(shell.folder / "served" / "data.tif")
    assert json.loads((shell.folder / "job.json").read_text())["status"] == "succeeded"


def test_transcribe_speech(shell: Shell) -> None:
    a_whisper(shell.folder / "my-whisper")
    a_wav2vec2(shell.folder / "my-hearer")
    sound = np.random.default_rng(0).integers(-9000, 9000, 48_000, dtype="<i2")
    write_wav(shell.folder / "speech.wav", Sound(sound, 16_000))
    for block in blocks("transcribe-speech.md"):
        shell.take(block)

    assert {path.name for path in (shell.folder / "transcript").iterdir()} == {"transcript.srt", "transcript.vtt"}
    job = json.loads((shell.folder / "job.json").read_text())
    assert (job["status"], job["progress"]["total"]) == ("succeeded", 2)
    assert json.loads((shell.folder / "words.json").read_text())["output"]["json"]["words"]
    heard = json.loads((shell.folder / "heard.json").read_text())["output"]["json"]
    assert (heard["duration"], len(heard["labels"]), len(heard["windows"])) == (3, 2, 1)
    assert " --> 00:00:0" in (shell.folder / "speech.srt").read_text()
    assert json.loads((shell.folder / "english.json").read_text())["output"]["json"]["duration"] == 3


def test_video(shell: Shell) -> None:
    with open_video_writer(shell.folder / "clip.mp4", (48, 64), 10) as writer:
        for number in range(30):
            writer.add(np.full((48, 64, 3), 8 * number, np.uint8))
    for block in blocks("video.md"):
        shell.take(block)

    shown = json.loads((shell.folder / "shown.json").read_text())["output"]["json"]
    assert [frame["time"] for frame in shown["frames"]] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert {path.name for path in (shell.folder / "street").iterdir()} == {"overlay.mp4", "masks.mkv"}
    job = json.loads((shell.folder / "job.json").read_text())
    assert (job["status"], job["progress"]["total"]) == ("succeeded", 3)
