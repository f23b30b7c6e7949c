"""Videos through image networks, frame by frame, as transformers itself makes of the same frames."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from penstock.errors import InputError, MediaTooLarge, MediaUnreadable
from penstock.models import Limits, Model
from penstock.processors.limits import MAX_SECONDS
from penstock.processors.registry import Registry
from penstock.processors.testing import Finished, check_processor
from penstock.processors.video.reading import open_video, read_chosen, read_timeline
from penstock.processors.video.request import VideoRequest
from penstock.processors.video.writing import open_video_writer
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_model, a_segformer, a_vit

VIDEO = "media://video"


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Return three seconds of a moving square at 10 frames a second, 64 x 48 px."""
    return a_video(tmp_path / "video.mp4")


def a_video(path: Path, *, frames: int = 30, fps: float = 10, shape: tuple[int, int] = (48, 64)) -> Path:
    with open_video_writer(path, shape, fps) as writer:
        for number in range(frames):
            pixels = np.full((*shape, 3), (20, 60, 20 + 5 * number), np.uint8)
            pixels[8:24, number : number + 16] = 255
            writer.add(pixels)
    return path


def check(
    engine: BatchingEngine, model: Model, request: Mapping[str, Any], other: Mapping[str, Any], video: Path
) -> Finished:
    return check_processor(
        Registry.imported().processor_for(model),
        request,
        {VIDEO: video},
        engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        other=other,
        limits=model.limits,
    )


def test_frames_that_are_chosen_by_number_are_those_of_the_whole_video(video: Path) -> None:
    timeline = read_timeline(video, Limits())
    assert (timeline.frames, timeline.shape) == (30, (48, 64))
    assert timeline.rate == pytest.approx(10)
    whole = [frame.image for frame in open_video(video, VideoRequest(video=VIDEO, fps=10), Limits()).frames(Limits())]
    assert len(whole) == 30
    np.testing.assert_array_equal(
        list(read_chosen(video, [0, 7, 7, 29], timeline.shape, Limits())), [whole[at] for at in (0, 7, 7, 29)]
    )
    with pytest.raises(MediaUnreadable, match="Frame 30 of the video cannot be decoded"):
        list(read_chosen(video, [29, 30], timeline.shape, Limits()))


@pytest.mark.parametrize(
    ("name", "codec"), [("a.avi", "mpeg4"), ("a.mkv", "mpeg4"), ("a.webm", "libvpx"), ("a.mp4", "mpeg4")]
)
def test_half_a_video_is_no_shorter_video(tmp_path: Path, name: str, codec: str) -> None:
    path = noise_of(tmp_path / name, codec)
    assert len(frames(path)) == 6
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    said = (
        "cannot be decoded"
        if name == "a.mp4"
        else r"is cut off: its header declares 6\.0 s and the file holds about [23]\.\d s\."
    )
    with pytest.raises(MediaUnreadable, match=said):
        frames(path)


def noise_of(path: Path, codec: str, options: dict[str, str] | None = None) -> Path:
    """Write six seconds of noise."""
    noise = np.random.default_rng(0)
    with av.open(str(path), "w", container_options=options or {}) as container:
        stream: Any = container.add_stream(codec, rate=10, width=64, height=48, pix_fmt="yuv420p")
        for _ in range(60):
            pixels = noise.integers(0, 255, (48, 64, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def decoded(path: Path) -> list[Image.Image]:
    with av.open(str(path)) as container:
        return [Image.fromarray(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def frames(path: Path, *, limits: Limits | None = None, **request: Any) -> list[float]:
    limits = limits or Limits()
    video = open_video(path, VideoRequest(video=VIDEO, **request), limits)
    times = [frame.time_s for frame in video.frames(limits)]
    assert len(times) == video.count
    return times


@torch.inference_mode()
def test_the_frames_of_a_video_have_the_classes_of_images(engine: BatchingEngine, video: Path, tmp_path: Path) -> None:
    source = a_vit(tmp_path / "vit", id2label={0: "cat", 1: "coffee", 2: "rocket", 3: "page"})
    theirs = ViTImageProcessorPil(size={"height": 32, "width": 32})
    theirs.save_pretrained(source)
    model = a_model(source, processor="video-classification", max_batch=1)
    done = check(engine, model, {"video": VIDEO, "fps": 2, "top_k": 4}, {"video": VIDEO}, video)
    classify = transformers.pipeline("image-classification", model=str(source), image_processor=theirs)
    found = done.result.data or {}
    assert [frame["time"] for frame in found["frames"]] == [0, 0.5, 1, 1.5, 2, 2.5]
    assert found["duration"] == 2.9
    images = decoded(video)
    means = dict.fromkeys(("cat", "coffee", "rocket", "page"), 0.0)
    for frame, number in zip(found["frames"], range(0, 30, 5), strict=True):
        expected = {label["label"]: label["score"] for label in classify(images[number], top_k=4)}
        assert {label["label"]: label["score"] for label in frame["labels"]} == pytest.approx(expected, abs=1e-5)
        means = {label: mean + expected[label] / 6 for label, mean in means.items()}
    assert {label["label"]: label["score"] for label in found["labels"]} == pytest.approx(means, abs=1e-5)


@torch.inference_mode()
def test_the_frames_of_a_video_are_segmented_as_images_are(engine: BatchingEngine, video: Path, tmp_path: Path) -> None:
    source = a_segformer(tmp_path / "segformer")
    theirs = SegformerImageProcessorPil(size={"height": 64, "width": 64})
    theirs.save_pretrained(source)
    model = a_model(source, processor="video-segmentation", max_batch=1)
    request = {"video": VIDEO, "fps": 1, "outputs": ["overlay", "masks"]}
    done = check(engine, model, request, {"video": VIDEO, "fps": 3}, video)
    with av.open(io.BytesIO(done.artifacts["masks.mkv"][1])) as container:
        masks = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    network = transformers.SegformerForSemanticSegmentation.from_pretrained(source).eval()
    assert len(masks) == 3
    for mask, image in zip(masks, decoded(video)[::10], strict=True):
        answer = network(**theirs(image, return_tensors="pt"))
        [expected] = theirs.post_process_semantic_segmentation(answer, target_sizes=[(48, 64)])
        assert (mask == expected.numpy()).mean() > 0.999
    found = (done.result.data or {})["frames"]
    assert [frame["time"] for frame in found] == [0, 1, 2]
    assert {shown["id"]: shown["share"] for shown in found[2]["classes"]} == {
        int(i): pytest.approx(n / masks[2].size, abs=1e-5)
        for i, n in zip(*np.unique(masks[2], return_counts=True), strict=True)
    }
    with av.open(io.BytesIO(done.artifacts["overlay.mp4"][1])) as container:
        shown = list(container.decode(video=0))
    assert [(frame.width, frame.height, round(frame.time or 0, 3)) for frame in shown] == [
        (64, 48, 0), (64, 48, 1), (64, 48, 2),
    ]  # fmt: skip


def test_frames_are_spread_over_a_video_that_has_more_than_are_taken(video: Path) -> None:
    assert frames(video, fps=120) == [number / 10 for number in range(30)]
    assert frames(video, fps=120, max_frames=3) == [0, 1, 2]
    assert frames(video, fps=120, limits=Limits(max_items=2)) == [0, 1.5]


@pytest.mark.parametrize("name", ["a.mkv", "a.avi", "a.mov"])
def test_other_files_have_the_same_frames(tmp_path: Path, name: str) -> None:
    assert frames(a_video(tmp_path / name), fps=2) == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5], abs=0.11)


def test_a_video_that_was_taken_upright_is_shown_upright(tmp_path: Path) -> None:
    path = tmp_path / "turned.mp4"
    data = a_video(tmp_path / "video.mp4").read_bytes()
    # The matrix of the track's header: from none to a quarter turn, as phones write it.
    at = data.index(b"tkhd") + 44
    one = (1 << 16).to_bytes(4, "big")
    assert data[at : at + 4] == one
    zero, minus = bytes(4), (-(1 << 16) & 0xFFFFFFFF).to_bytes(4, "big")
    quarter = zero + one + zero + minus + zero * 2 + zero * 2 + data[at + 32 : at + 36]
    path.write_bytes(data[:at] + quarter + data[at + 36 :])
    video = open_video(path, VideoRequest(video=VIDEO), Limits())
    image = next(video.frames(Limits())).image
    assert (video.shape, image.shape) == ((64, 48), (64, 48, 3))
    bright = np.argwhere(image[..., 0] > 128)
    assert bright.min(axis=0).tolist() == pytest.approx([0, 24], abs=2), "the square is at the top, to the right"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_what_is_no_video_or_too_much_of_one_is_refused(video: Path, tmp_path: Path) -> None:
    whole = video.read_bytes()
    refused: list[tuple[Path, Limits, type[InputError], str]] = [
        (video, Limits(max_seconds=2), MediaTooLarge, "longer than 2 seconds"),
        (video, Limits(max_pixels=64 * 47), MediaTooLarge, "64 x 48 = 3072 pixels; at most 3008"),
        (
            write(tmp_path / "a.txt", b"no video at all"),
            Limits(),
            MediaUnreadable,
            "not a supported video: supported are MP4",
        ),
        (write(tmp_path / "b.mp4", whole[:200]), Limits(), MediaUnreadable, "cannot be decoded: it is damaged"),
        (write(tmp_path / "c.wav", sound()), Limits(), MediaUnreadable, "The file has no video track"),
    ]
    for path, limits, error, words in refused:
        with pytest.raises(error, match=words):
            frames(path, limits=limits)


def test_a_video_has_a_longest_length_in_every_model(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with open_video_writer(path, (48, 64), 1 / (MAX_SECONDS // 2)) as writer:
        for _ in range(3):
            writer.add(np.zeros((48, 64, 3), np.uint8))
    frames(path, limits=Limits())
    with open_video_writer(path, (48, 64), 1 / (MAX_SECONDS // 2 + 1)) as writer:
        for _ in range(3):
            writer.add(np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(MediaTooLarge, match=r"longer than 14400 seconds, .* without `limits\.max_seconds`"):
        frames(path, limits=Limits())


def test_a_video_whose_frames_are_damaged_fails_with_a_reason(video: Path, tmp_path: Path) -> None:
    whole = bytearray(video.read_bytes())
    at = whole.index(b"mdat") + 4
    whole[at : at + 900] = bytes(900)
    with pytest.raises(MediaUnreadable, match=r"cannot be decoded|no frame that can be decoded"):
        frames(write(tmp_path / "broken.mp4", bytes(whole)))


def sound() -> bytes:
    head = b"WAVEfmt \x10\0\0\0\x01\0\x01\0" + (16_000).to_bytes(4, "little") + (32_000).to_bytes(4, "little")
    body = head + b"\x02\0\x10\0data" + (320).to_bytes(4, "little") + bytes(320)
    return b"RIFF" + len(body).to_bytes(4, "little") + body
