"""The library's own pipelines make the same images in the service as alone, whatever shares the batch."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.models import Limits
from penstock.processors.base import Prompt
from penstock.processors.image_generation.calls import Task, calls_of
from penstock.processors.image_generation.generation import ImageGeneration
from penstock.processors.testing import LocalFiles
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.diffusers.calls import CallRunner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support import diffusion, pipelines
from tests.support.diffusion import a_model, a_painter
from tests.support.hub import finish, finish_states

#: Warnings of numpy 2 about the library's older schedulers.
pytestmark = [
    pytest.mark.library,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning"),
]

WAIT_S = 240
SIDE = 64
AUTO = {Task.TEXT: "Text2Image", Task.IMAGE: "Image2Image", Task.INPAINT: "Inpainting"}
TRIED = [(family, task) for family in ("stable-diffusion", *sorted(pipelines.FAMILIES)) for task in AUTO]

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module")
def files(folder: Path) -> Mapping[str, Path]:
    """Return an image and its masks: the left half in white, and the left half transparent."""
    random = np.random.default_rng(3)
    coarse = random.integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / "image.png")
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:, : SIDE // 2] = 255
    Image.fromarray(mask).save(folder / "mask.png")
    holes = Image.new("RGBA", (SIDE, SIDE), "black")
    holes.putalpha(Image.fromarray(255 - mask))
    holes.save(folder / "holes.png")
    return {f"media://{name}": folder / f"{name}.png" for name in ("image", "mask", "holes")}


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Iterator[Any]:
    """Return a function from a family to its directory and its runner; one runner is kept at a time."""
    kept: dict[str, tuple[Path, Runner]] = {}

    def load(family: str) -> tuple[Path, Runner]:
        if family not in kept:
            kept.clear()
            path = folder / family
            if not path.exists():
                made = a_painter(path) if family == "stable-diffusion" else pipelines.made(family, path)
                path.joinpath("source").write_text(str(made))
            source = Path(path.joinpath("source").read_text())
            kept[family] = source, diffusion.load(source)
        return kept[family]

    yield load
    kept.clear()


def asked(source: Path, files: Mapping[str, Path], task: Task, **wishes: Any) -> Prompt:
    """Return the prompt that the processor makes of a request."""
    given = {Task.TEXT: {}, Task.IMAGE: {"image": "media://image"}}.get(
        task, {"image": "media://image", "mask": "media://mask"}
    )
    sizes = {"width": SIDE, "height": SIDE}
    processor = ImageGeneration(a_model(source))
    request = processor.request.model_validate({"prompt": "a cat", "steps": 4, "seed": 1, **sizes, **given, **wishes})
    [prompt] = processor.pre_process(request, LocalFiles(files)).prompts
    return prompt


def expected(source: Path, files: Mapping[str, Path], task: Task, prompt: Prompt) -> Pixels:
    """Return what the library makes of the same request."""
    pipeline = getattr(diffusers, f"AutoPipelineFor{AUTO[task]}").from_pretrained(source, safety_checker=None)
    pipeline.set_progress_bar_config(disable=True)
    call = next(call for call in calls_of(type(pipeline).__name__).values() if call.task is task)
    given: dict[str, Any] = {"image": Image.open(files["media://image"])} if task is not Task.TEXT else {}
    given |= {"mask_image": Image.open(files["media://mask"])} if task is Task.INPAINT else {}
    sizes = {"width": SIDE, "height": SIDE} if call.takes("width") else {}
    also = {
        name: prompt.data[name] for name in ("guidance_scale", "strength", "negative_prompt") if name in prompt.data
    }
    if type(pipeline).__name__ == "FluxKontextPipeline":  # else it makes about a megapixel of whatever it gets
        also |= {"max_area": SIDE**2, "_auto_resize": False}
    made = pipeline(
        prompt=prompt.data["prompt"], num_inference_steps=prompt.data["steps"], **sizes, **given, **also,
        generator=torch.Generator().manual_seed(prompt.data["seed"]),
    )  # fmt: skip
    return np.asarray(made.images[0])


def image(output: Any) -> Pixels:
    return np.asarray(output.data["image"])


@pytest.mark.breadth(but=("stable-diffusion-image", "flux-text"))
@pytest.mark.parametrize(("family", "task"), [(family, task) for family, task in TRIED])
def test_a_call_makes_the_librarys_image_alone_and_beside_others(
    loaded: Any, files: Mapping[str, Path], family: str, task: Task
) -> None:
    source, runner = loaded(family)
    name = json.loads((source / "model_index.json").read_text())["_class_name"]
    call = calls_of(name).get(task)
    if call is None:
        with pytest.raises(InvalidInput, match=f"has no {task.words}"):
            asked(source, files, task)
        return
    wish = {"strength": 0.6} if call.takes("strength") else {}
    prompts = [
        asked(source, files, task, **wish),
        asked(source, files, task, **wish, steps=6, seed=2, prompt="a hat"),
    ]
    alone = [image(finish(runner, prompt)[0]) for prompt in prompts]
    for prompt, found in zip(prompts, alone, strict=True):
        np.testing.assert_array_equal(found, expected(source, files, task, prompt))
    assert (alone[0] != alone[1]).any()
    assert np.ptp(alone[0]) > 50
    assert alone[0].shape == (SIDE, SIDE, 3)
    first = runner.step([runner.admit(prompts[0])])[0]
    states = [first.state, runner.admit(prompts[1])] if isinstance(first, Continue) else []
    for found, one in zip(map(image, finish_states(runner, states)), alone, strict=False):
        np.testing.assert_array_equal(found, one)
    assert len({runner.bucket(prompt) for prompt in prompts}) == 1
    assert isinstance(runner, CallRunner)
    other = replace(prompts[0], data={**prompts[0].data, "seed": 5, "prompt": "a hat"})
    [one, two] = finish(replace(runner, together=True), prompts[0], other)
    assert np.abs(image(one).astype(int) - alone[0]).max() <= 1
    assert np.abs(image(two).astype(int) - image(finish(runner, other)[0])).max() <= 1


@pytest.fixture
def runner(loaded: Any) -> CallRunner:
    _, found = loaded("stable-diffusion-xl")
    assert isinstance(found, CallRunner)
    return found


@pytest.fixture
def source(loaded: Any) -> Path:
    found: Path = loaded("stable-diffusion-xl")[0]
    return found


class Failing:
    """A device that fails in one of its passes."""

    def __init__(self, device: Any, fails_at: int) -> None:
        self._device, self._left = device, fails_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def running(self) -> Any:
        self._left -= 1
        if self._left == 0:
            raise RuntimeError("a kernel failed")
        return self._device.running()


def test_a_step_that_failed_is_taken_again_and_the_others_of_its_batch_are_not(
    source: Path, runner: CallRunner, files: Mapping[str, Path]
) -> None:
    prompts = [asked(source, files, Task.TEXT, steps=6, seed=seed) for seed in (1, 2, 3)]
    failing = replace(runner, device=Failing(runner.device, 3))
    before = [step.state for step in failing.step([failing.admit(prompt) for prompt in prompts[:2]])]  # type: ignore[union-attr]
    states = [*before, failing.admit(prompts[2])]
    with pytest.raises(RuntimeError):
        failing.step(states)  # the first two were advanced
    for found, prompt in zip(map(image, finish_states(failing, states)), prompts, strict=True):
        np.testing.assert_array_equal(found, image(finish(runner, prompt)[0]))


def test_a_call_that_failed_between_its_steps_repeats_them(
    source: Path, runner: CallRunner, files: Mapping[str, Path]
) -> None:
    prompt = asked(source, files, Task.TEXT, steps=6)
    state: Any = runner.admit(prompt)
    for _ in range(3):
        [step] = runner.step([state])
        assert isinstance(step, Continue)
        state = step.state
    state.wish.drawing.call = None  # as an error leaves it
    np.testing.assert_array_equal(image(finish_states(runner, [state])[0]), image(finish(runner, prompt)[0]))


@pytest.mark.parametrize("closed", [False, True])
def test_the_thread_of_a_call_ends_with_its_image_or_its_runner(
    source: Path, runner: CallRunner, files: Mapping[str, Path], closed: bool
) -> None:
    before = set(threading.enumerate())
    own = replace(runner, modules=[], calls=weakref.WeakSet())
    gc.disable()  # a canceled job's memory must not wait for a collection of circles
    try:
        [step] = own.step([own.admit(asked(source, files, Task.TEXT, steps=900))])
        [thread] = set(threading.enumerate()) - before
        assert isinstance(step, Continue)
        assert step.done == pytest.approx(1 / 900)
        if closed:
            own.close()
            assert not thread.is_alive()
        del step
        thread.join(WAIT_S)
        assert not thread.is_alive()
    finally:
        gc.enable()


@pytest.mark.breadth
def test_in_bfloat16_the_image_is_the_librarys_in_bfloat16(source: Path, files: Mapping[str, Path]) -> None:
    prompt = asked(source, files, Task.TEXT)
    pipeline = diffusers.StableDiffusionXLPipeline.from_pretrained(source, dtype=torch.bfloat16)
    pipeline.set_progress_bar_config(disable=True)
    made = pipeline(
        prompt="a cat", num_inference_steps=4, width=SIDE, height=SIDE, guidance_scale=5.0,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    runner = diffusion.load(source, dtype="bfloat16")
    np.testing.assert_array_equal(image(finish(runner, prompt)[0]), np.asarray(made.images[0]))


def test_a_scheduler_of_a_call_is_its_own(source: Path, runner: CallRunner, files: Mapping[str, Path]) -> None:
    own = runner.pipelines[Task.TEXT].scheduler
    finish(runner, asked(source, files, Task.TEXT, steps=3))
    assert own.num_inference_steps is None


def test_an_engine_runs_calls_of_several_jobs_and_ends_them(source: Path, files: Mapping[str, Path]) -> None:
    shares: list[float] = []
    with closing(BatchingEngine(Runners.installed())) as engine:
        prompt = asked(source, files, Task.IMAGE, strength=0.5, steps=8)
        made = list(
            engine.run(
                a_model(source), iter([prompt]), check=lambda: None, on_batch=lambda _, more: shares.append(more)
            )
        )
        assert image(made[-1]).shape == (SIDE, SIDE, 3)
    assert len(shares) == 4, "of eight steps half are made"
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("family", ["auraflow", "lcm", "pixart-sigma", "stable-diffusion-3", "stable-diffusion-xl"])
@pytest.mark.breadth(but=("stable-diffusion-3",))
def test_previews_are_small(loaded: Any, files: Mapping[str, Path], family: str) -> None:
    source, runner = loaded(family)
    seen = previews_of(runner, asked(source, files, Task.TEXT, steps=6, previews=2, width=256, height=192))
    # PixArt draws in another size and resizes.
    assert {preview.shape for preview in seen} == {(72, 96, 3) if family == "pixart-sigma" else (96, 128, 3)}
    assert (seen[0] != seen[1]).any()


@pytest.mark.parametrize("family", ["auraflow", "stable-diffusion-3"])
@pytest.mark.breadth(but=("stable-diffusion-3",))
def test_previews_are_the_librarys_latents_decoded(loaded: Any, files: Mapping[str, Path], family: str) -> None:
    """These schedulers expect no final image, so that the latents themselves are shown."""
    source, runner = loaded(family)
    seen = previews_of(runner, asked(source, files, Task.TEXT, steps=4, previews=3))
    pipeline, expected = diffusers.AutoPipelineForText2Image.from_pretrained(source), []
    pipeline.set_progress_bar_config(disable=True)

    def decode(_pipeline: Any, _step: int, _time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        config = pipeline.vae.config
        latents = tensors["latents"] / config.scaling_factor + (config.shift_factor or 0)
        expected.append(np.asarray(pipeline.image_processor.postprocess(pipeline.vae.decode(latents).sample)[0]))
        return tensors

    pipeline(
        "a cat", num_inference_steps=4, width=SIDE, height=SIDE, generator=torch.Generator().manual_seed(1),
        guidance_scale=asked(source, files, Task.TEXT).data["guidance_scale"], callback_on_step_end=decode,
    )  # fmt: skip
    for found, wanted in zip(seen, expected[:3], strict=True):
        np.testing.assert_array_equal(found, wanted)


def previews_of(runner: Runner, prompt: Prompt) -> list[Pixels]:
    """Return the previews of an image."""
    state, seen = runner.admit(prompt), []
    while isinstance(step := runner.step([state])[0], Continue):
        state = step.state
        if step.partial is not None:
            seen.append(np.asarray(step.partial.data["preview"]))
    return seen


@pytest.mark.parametrize(
    ("family", "request_", "pointer", "words"),
    [
        ("lcm", {"negative_prompt": "a hat"}, "/input/negative_prompt", "no meaning in LatentConsistencyModelPipeline"),
        ("stable-diffusion-xl", {"strength": 0.5}, "/input/strength", "no meaning in StableDiffusionXLPipeline"),
        ("stable-diffusion-xl", {"true_cfg_scale": 2}, "/input/true_cfg_scale", "no meaning"),
        ("stable-diffusion-xl", {"width": 60}, "/input/width", "60 is not a multiple of 8"),
        ("stable-diffusion-xl", {"steps": 1001}, "/input/steps", "too many"),
        ("flux", {"previews": 2}, "/input/previews", "FluxPipeline makes no previews"),
        ("stable-diffusion-xl", {"mask": "media://mask"}, "/input/mask", "needs the image"),
        ("pixart-alpha", {"image": "media://image"}, "/input/image", "has no image to image; it has: text to image"),
        ("lcm", {"image": "media://image", "mask": "media://mask"}, "/input/mask", "has no inpainting"),
        ("stable-diffusion", {"strength": 0.5}, "/input/strength", "no meaning in StableDiffusionPipeline"),
    ],
)
def test_what_a_pipeline_does_not_take_is_refused_by_name(
    loaded: Any, files: Mapping[str, Path], family: str, request_: dict[str, Any], pointer: str, words: str
) -> None:
    source, _ = loaded(family)
    with pytest.raises(InvalidInput, match=words) as caught:
        asked(source, files, Task.TEXT, **request_)
    assert caught.value.errors[0].pointer == pointer


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"strength": 0.5}, InvalidInput, "StableDiffusionXLPipeline does not take strength"),
        ({"image": np.zeros((8, 8), np.float32)}, ProcessorFailed, "`image` as uint8 with 3 axes"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(
    source: Path, runner: CallRunner, files: Mapping[str, Path], data: dict[str, Any], error: Any, words: str
) -> None:
    prompt = asked(source, files, Task.TEXT)
    with pytest.raises(error, match=words):
        runner.admit(replace(prompt, data={**prompt.data, **data}))


def test_a_pipeline_that_rejects_a_request_says_why(
    source: Path, runner: CallRunner, files: Mapping[str, Path]
) -> None:
    with pytest.raises(InvalidInput, match=r"0\.1 of 9 steps is less than one step"):
        asked(source, files, Task.IMAGE, steps=9, strength=0.1)
    prompt = asked(source, files, Task.IMAGE)
    with pytest.raises(InvalidInput, match="XLImg2ImgPipeline rejects this request: The value of strength"):
        finish(runner, replace(prompt, data={**prompt.data, "strength": 1.5}))


def test_a_mask_may_be_white_or_transparent(source: Path, files: Mapping[str, Path]) -> None:
    white = asked(source, files, Task.INPAINT)
    holes = asked(source, files, Task.INPAINT, mask="media://holes", mask_edits="transparent")
    own = asked(source, files, Task.IMAGE, image="media://holes", mask_edits="transparent")
    assert white.data["task"] == own.data["task"] == "inpaint"
    np.testing.assert_array_equal(white.data["mask"], holes.data["mask"])
    np.testing.assert_array_equal(white.data["mask"], own.data["mask"])
    assert set(white.data["mask"][:, :32].ravel()) == {255}
    with pytest.raises(InvalidInput, match="no transparent pixels"):
        asked(source, files, Task.INPAINT, mask_edits="transparent")


def test_an_image_keeps_its_size_as_far_as_the_network_can(source: Path, tmp_path: Path) -> None:
    Image.new("RGB", (70, 45), "red").save(tmp_path / "image.png")
    Image.new("L", (45, 70)).save(tmp_path / "mask.png")
    files = {f"media://{name}": tmp_path / f"{name}.png" for name in ("image", "mask")}
    data = asked(source, files, Task.IMAGE, width=None, height=None).data
    assert (data["width"], data["height"], data["image"].shape) == (64, 40, (40, 64, 3))
    with pytest.raises(InvalidInput, match="70 x 45 and 45 x 70 pixels"):
        asked(source, files, Task.INPAINT)


def test_a_network_for_inpainting_makes_nothing_else(tmp_path: Path, files: Mapping[str, Path]) -> None:
    source = pipelines.made("stable-diffusion-xl", tmp_path)
    config = source / "unet" / "config.json"
    config.write_text(config.read_text().replace('"in_channels": 4', '"in_channels": 9'))
    with pytest.raises(InvalidInput, match="has no text to image; it has: inpainting"):
        asked(source, files, Task.TEXT)
    dummy = ImageGeneration(a_model(source)).dummy(Limits(), tmp_path)
    assert {"image", "mask"} <= set(dummy.request)
    assert all(path.is_file() for path in dummy.files.values())


@pytest.mark.parametrize(
    ("part", "entry", "words"),
    [
        (
            "tokenizer",
            ["transformers", "NoSuchTokenizer"],
            "'NoSuchTokenizer' of 'transformers', which is not installed",
        ),
        ("unet", ["mine", "Network"], "'Network' of 'mine', which is not installed or not known"),
        ("scheduler", ["diffusers", "DPMSolverSDEScheduler"], "requires the torchsde library"),
    ],
)
def test_a_part_that_cannot_be_loaded_is_refused_unread(
    tmp_path: Path, part: str, entry: list[str], words: str
) -> None:
    source = pipelines.made("stable-diffusion-xl", tmp_path)
    index = source / "model_index.json"
    Runners.installed().check(a_model(source))
    index.write_text(json.dumps({**json.loads(index.read_text()), part: entry}))
    with pytest.raises(ModelUnavailable, match=words):
        Runners.installed().check(a_model(source))


def test_weights_that_are_missing_quantised_or_pickled_are_refused_unread(tmp_path: Path) -> None:
    source = pipelines.made("stable-diffusion-xl", tmp_path)
    config = source / "text_encoder_2" / "config.json"
    content = config.read_text()
    config.write_text(json.dumps({**json.loads(content), "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(ModelUnavailable, match="text_encoder_2/ has quantised weights"):
        Runners.installed().check(a_model(source))
    config.write_text(content)
    weights = source / "text_encoder_2" / "model.safetensors"
    weights.rename(weights.with_name("pytorch_model.bin"))
    with pytest.raises(ModelUnavailable, match="text_encoder_2/ has pickled weights only"):
        Runners.installed().check(a_model(source))


def test_the_table_of_pipelines_is_that_of_the_library() -> None:
    from infra.sync_pipelines import TABLE, text

    assert TABLE.read_text() == text(), "run `python infra/sync_pipelines.py`"
