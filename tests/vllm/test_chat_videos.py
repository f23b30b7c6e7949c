"""Videos in chats of the runner `transformers`, by the library's video processors, which need torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchvision", reason="needs an environment with torchvision: make test-vllm")

import av
import torch
import transformers
from PIL import Image
from transformers.video_utils import VideoMetadata

from penstock.errors import InvalidInput, MediaTooLarge
from penstock.intake.media import LocalMedia
from penstock.models import Limits, media_references
from penstock.processors.base import Prompt
from penstock.processors.multimodal.chat import ImageTextToText
from penstock.processors.testing import LocalFiles
from penstock.processors.video.writing import open_video_writer
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support.hub import a_model, finish, load
from tests.support.image_text_kinds import FIRST
from tests.support.image_text_types import write_kind

pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")),
]

NEW = 12
QUESTION = "What moves?"
#: Frames of the video, at 10 a second: more than those for a network whose processor chooses none.
FRAMES, ALL = 50, 32
#: Types of networks, and what their templates write for a video.
KINDS = {
    "qwen2_5_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "qwen3_vl": "<|vision_start|><|video_pad|><|vision_end|>",
    "llava_onevision": "<video>",
    "internvl": "<video>",
    "glm4v": "<|begin_of_video|><|video|><|end_of_video|>",
    "video_llama_3": "<|video_pad|>",
}
#: Parts of messages: videos among texts and images, in any order.
CHATS = (["video"], ["image", "video"], ["video", "image", "video"])
#: Types whose network in the library takes images or videos: frames have the placeholders of images.
APART = {"glm4v": (["video"], ["video", "video"])}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("media")
    noise = np.random.default_rng(5).integers(0, 256, (FRAMES, 48, 80, 3), dtype=np.uint8)
    with open_video_writer(folder / "clip.mp4", (48, 80), 10.0) as writer:
        for frame in noise:
            writer.add(frame)
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (50, 70, 3), dtype=np.uint8)).save(folder / "image.png")
    return {"media://video": folder / "clip.mp4", "media://image": folder / "image.png"}


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_kind(request.param, tmp_path_factory.mktemp("model") / "tiny")
    written, before = folder / "chat_template.jinja", "{% if part.type == 'image' %}"
    shown = f"{{% if part.type == 'video' %}}{KINDS[request.param]}{{% elif part.type == 'image' %}}"
    assert before in written.read_text()
    written.write_text(written.read_text().replace(before, shown))
    return folder


def a_processor(directory: Path, **fields: Any) -> ImageTextToText:
    return ImageTextToText(a_model(directory, processor="image-text-to-text", **fields))


def a_chat(kinds: Sequence[str]) -> dict[str, Any]:
    shown = [{"type": kind, kind: f"media://{kind}"} for kind in kinds]
    content = [*shown, {"type": "text", "text": QUESTION}]
    return {"messages": [{"role": "user", "content": content}], "max_new_tokens": NEW}


def prompt_of(processor: ImageTextToText, files: dict[str, Path], kinds: Sequence[str]) -> Prompt:
    request = a_chat(kinds)
    found = [reference for _, reference in media_references(processor.request.model_json_schema(), request)]
    assert found == [f"media://{kind}" for kind in kinds], "the service finds the media of a request by its schema"
    [prompt] = processor.pre_process(processor.request.model_validate(request), LocalFiles(files)).prompts
    return prompt


def library_inputs(processor: Any, files: dict[str, Path], kinds: Sequence[str]) -> Any:
    """Return what the library makes of whole videos, if its processor chooses the frames, else of some frames."""
    with av.open(str(files["media://video"])) as container:
        rate = container.streams.video[0].average_rate
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    whole = VideoMetadata(total_num_frames=len(frames), fps=float(rate), duration=float(len(frames) / rate))
    samples = processor.video_processor.do_sample_frames
    if not samples:
        whole.frames_indices = [int(number) for number in np.linspace(0, FRAMES - 1, ALL).astype(int)]
        frames = frames[whole.frames_indices]
    given = {"video": frames, "image": Image.open(files["media://image"]).convert("RGB")}
    content = [*({"type": kind, kind: given[kind]} for kind in kinds), {"type": "text", "text": QUESTION}]
    videos = {"do_sample_frames": samples, "video_metadata": [whole for kind in kinds if kind == "video"]}
    return processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True, return_dict=True,
        return_tensors="pt", processor_kwargs={"videos_kwargs": videos},
    )  # fmt: skip


@torch.inference_mode()
def test_answers_about_videos_are_the_library_s(directory: Path, files: dict[str, Path]) -> None:
    processor = a_processor(directory)
    network = transformers.AutoModelForImageTextToText.from_pretrained(directory, local_files_only=True).eval()
    said = set()
    with closing(load(directory, processor="image-text-to-text")) as runner:
        for kinds in APART.get(network.config.model_type, CHATS):
            (output,) = finish(runner, prompt_of(processor, files, kinds))
            inputs = library_inputs(processor.encoder.processor, files, kinds)
            made = network.generate(**inputs, max_new_tokens=NEW, do_sample=False, num_beams=1)[0].tolist()
            expected = [token for token in made[inputs["input_ids"].shape[1] :] if token != FIRST]
            assert output.data["token_ids"] == expected, kinds
            said |= {tuple(expected)}
    assert len(said) > 1, "a network that says the same about all of them shows nothing"


@pytest.mark.parametrize("directory", ["qwen3_vl"], indirect=True)
def test_a_job_goes_through_an_io_process_and_the_engine(
    directory: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    """The video is decoded in a process that may read the job's media, and nothing else."""
    model = a_model(directory, processor="image-text-to-text")
    media = {reference: LocalMedia(path) for reference, path in files.items()}
    with closing(IOPool(1, ForkOptions(6144 * 2**20))) as pool, closing(BatchingEngine(Runners.installed())) as engine:
        assert pool.entry(model).problem is None
        work = Work(model, a_chat(["video"]), media, tmp_path, tenant="one")
        with pool.open(work, check=lambda: None, say=lambda _: None) as session:
            done = session.finish(
                engine.run(model, session.prepared.prompts, check=lambda: None, cost=session.prepared.cost)
            )
    with closing(load(directory, processor="image-text-to-text")) as runner:
        (output,) = finish(runner, prompt_of(a_processor(directory), files, ["video"]))
    assert done.result.data is not None
    assert done.result.data["usage"]["completion_tokens"] == len(output.data["token_ids"])


def test_videos_beyond_the_limits_are_refused(directory: Path, files: dict[str, Path]) -> None:
    with pytest.raises(MediaTooLarge, match="longer than 1 seconds"):
        prompt_of(a_processor(directory, limits=Limits(max_seconds=1)), files, ["video"])
    with pytest.raises(InvalidInput, match="2 images and videos were given; this model accepts at most 1"):
        prompt_of(a_processor(directory, limits=Limits(max_items=1)), files, ["image", "video"])
