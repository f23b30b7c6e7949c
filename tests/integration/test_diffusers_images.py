"""The runner `diffusers` makes the images of the library's own pipelines, whatever shares the batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from penstock.errors import Canceled, InvalidInput, ModelUnavailable, PenstockError, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.processors.image_generation.calls import Task
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.diffusers.calls import CallRunner
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support import diffusion
from tests.support.diffusion import a_dreamer, a_labeller, a_model, a_painter, with_old_vocabulary
from tests.support.hub import finish, finish_states

#: Warnings of numpy 2 about the library's older schedulers.
NUMPY = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
pytestmark = [pytest.mark.library, NUMPY]

ASKED, REFUSED = "a cat and a hat", "and"
SCHEDULERS = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)
WAIT_S = 240

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def painter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_painter(tmp_path_factory.mktemp("painter"))


@pytest.fixture(scope="module")
def runner(painter: Path) -> Runner:
    return diffusion.load(painter)


def library(source: Path, pipeline: str, **given: Any) -> Any:
    loaded = getattr(diffusers, pipeline).from_pretrained(source, **given)
    loaded.set_progress_bar_config(disable=True)
    return loaded


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def told(text: str = ASKED, *, other: str = "", **data: Any) -> Prompt:
    """Return the prompt of an image of 64 x 64 px."""
    usual = {"task": "text", "width": 64, "height": 64, "steps": 6, "seed": 1, "guidance_scale": 7.5}
    return Prompt({"prompt": text, "negative_prompt": other, **usual, **data})


def untold(**data: Any) -> Prompt:
    """Return the prompt of an image of 16 x 16 px of which nothing is said."""
    return Prompt({"task": "nothing", "width": 16, "height": 16, "steps": 6, "seed": 1, **data})


def labelled(label: Any, **data: Any) -> Prompt:
    """Return the prompt of an image of 32 x 32 px of something."""
    usual = {"task": "label", "width": 32, "height": 32, "steps": 6, "seed": 1, "guidance_scale": 4.0}
    return Prompt({"label": label, **usual, **data})


def image(output: Output) -> Pixels:
    return np.asarray(output.data["image"])


def drawn(pipeline: Any, *args: Any, **kwargs: Any) -> Pixels:
    return np.asarray(pipeline(*args, **kwargs).images[0])


def painted(pipeline: Any, prompt: Prompt, text: str = ASKED, other: str = "") -> Pixels:
    """Return what Stable Diffusion's own pipeline makes of a prompt."""
    data = prompt.data
    return drawn(
        pipeline, text, negative_prompt=other, num_inference_steps=data["steps"], generator=random(data["seed"]),
        guidance_scale=data["guidance_scale"], width=data["width"], height=data["height"],
    )  # fmt: skip


@pytest.mark.breadth(every=4)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_text_becomes_the_librarys_image(tmp_path: Path, scheduler: str) -> None:
    source = a_painter(tmp_path, scheduler)
    runner, pipeline = diffusion.load(source), library(source, "StableDiffusionPipeline")
    for wish in ({}, {"guidance_scale": 1.0, "seed": 2, "steps": 3}, {"steps": 1, "width": 80, "height": 48}):
        prompt = told(other=REFUSED, **wish)
        [found] = finish(runner, prompt)
        assert image(found).shape == (prompt.data["height"], prompt.data["width"], 3)
        np.testing.assert_array_equal(image(found), painted(pipeline, prompt, other=REFUSED))


@pytest.mark.breadth
def test_what_is_asked_for_and_what_is_not_both_count(runner: Runner) -> None:
    prompts = [told(), told("a hat"), told(other=REFUSED), told(seed=2)]
    images = [image(found) for found in finish(runner, *prompts)]
    for number, first in enumerate(images):
        assert all((first != second).any() for second in images[number + 1 :])


def test_a_text_that_is_too_long_is_cut_and_named(runner: Runner) -> None:
    [cut, whole] = finish(runner, told("cat " * 40), told(other="cat " * 40))
    assert (cut.data["truncated"], whole.data["truncated"]) == (["prompt"], ["negative_prompt"])
    [short] = finish(runner, told())
    assert short.data["truncated"] == []


@pytest.mark.breadth
def test_a_vocabulary_from_before_tokenizer_json_is_read(tmp_path: Path, painter: Path, runner: Runner) -> None:
    old = with_old_vocabulary(a_painter(tmp_path))
    prompt = told("a cat and a HAT: Ünï  códe 42 don't!")
    [found, expected] = [finish(each, prompt)[0] for each in (diffusion.load(old), runner)]
    np.testing.assert_array_equal(image(found), image(expected))
    pipeline = library(painter, "StableDiffusionPipeline")
    np.testing.assert_array_equal(image(found), painted(pipeline, prompt, prompt.data["prompt"]))


@pytest.mark.breadth
def test_a_scheduler_from_before_is_corrected_as_the_library_does(tmp_path: Path) -> None:
    source = a_painter(tmp_path, steps_offset=1)
    config = source / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text().replace('"steps_offset": 1', '"steps_offset": 0'))
    with pytest.warns(FutureWarning, match="steps_offset"):
        pipeline = library(source, "StableDiffusionPipeline")
    prompt = told()
    np.testing.assert_array_equal(image(finish(diffusion.load(source), prompt)[0]), painted(pipeline, prompt))


@pytest.mark.breadth(but=("DDPMPipeline-DDPMScheduler",))
@pytest.mark.parametrize(
    ("pipeline", "scheduler"),
    [("DDPMPipeline", "DDPMScheduler"), ("DDPMPipeline", "DDIMScheduler"), ("DDIMPipeline", "DDPMScheduler")],
)
def test_noise_becomes_the_librarys_image_without_a_word(tmp_path: Path, pipeline: str, scheduler: str) -> None:
    source = a_dreamer(tmp_path, scheduler, pipeline)
    [found] = finish(diffusion.load(source), untold(seed=3))
    expected = drawn(library(source, pipeline), num_inference_steps=6, generator=random(3))
    np.testing.assert_array_equal(image(found), expected)


@pytest.mark.breadth(but=("4.0",))
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_label_becomes_the_librarys_image(tmp_path: Path, scale: float) -> None:
    source = a_labeller(tmp_path)
    outputs = finish(diffusion.load(source), labelled(2, guidance_scale=scale), labelled(1, guidance_scale=scale))
    expected = drawn(
        library(source, "DiTPipeline"), [2], guidance_scale=scale, num_inference_steps=6, generator=random(1)
    )
    np.testing.assert_array_equal(image(outputs[0]), expected)
    assert np.ptp(expected) > 50
    assert (image(outputs[0]) != image(outputs[1])).any()


def test_a_label_has_the_same_image_each_time_where_the_scheduler_draws_noise(tmp_path: Path) -> None:
    runner = diffusion.load(a_labeller(tmp_path, "DDPMScheduler"))
    assert isinstance(runner, CallRunner)
    [one, other], [again] = finish(runner, labelled(2), labelled(2, seed=2)), finish(runner, labelled(2))
    np.testing.assert_array_equal(image(one), image(again))
    assert (image(one) != image(other)).any()
    [common, _] = finish(replace(runner, together=True), labelled(2), labelled(1, seed=5))
    assert np.abs(image(common).astype(int) - image(one)).max() <= 1


@pytest.mark.parametrize("kind", ["nothing", "label"])
def test_in_bfloat16_the_image_is_the_librarys_in_bfloat16(tmp_path: Path, kind: str) -> None:
    make, name, prompt, given = {
        "nothing": (a_dreamer, "DDPMPipeline", untold(), {}),
        "label": (a_labeller, "DiTPipeline", labelled(2), {"class_labels": [2]}),
    }[kind]
    source = make(tmp_path)
    pipeline = library(source, name, dtype=torch.bfloat16)
    made = pipeline(**given, num_inference_steps=6, generator=random(1), output_type="pt").images[0]
    [found] = finish(diffusion.load(source, dtype="bfloat16"), prompt)
    expected = (made.float() * 255).round().to(torch.uint8).permute(1, 2, 0)
    np.testing.assert_array_equal(image(found), expected.numpy())


def test_a_transformer_under_its_older_name_is_loaded(tmp_path: Path) -> None:
    source = a_labeller(tmp_path)
    [expected] = finish(diffusion.load(source), labelled(2))
    for path in (source / "model_index.json", source / "transformer" / "config.json"):
        rewrite(path, "DiTTransformer2DModel", "Transformer2DModel")
    [found] = finish(diffusion.load(source), labelled(2))
    np.testing.assert_array_equal(image(found), image(expected))


@pytest.mark.parametrize("kind", ["nothing", "label"])
def test_images_without_a_text_have_previews(tmp_path: Path, kind: str) -> None:
    runner = diffusion.load({"nothing": a_dreamer, "label": a_labeller}[kind](tmp_path))
    wish = {"steps": 9, "previews": 8}
    state, seen = runner.admit(untold(**wish) if kind == "nothing" else labelled(2, **wish)), []
    while isinstance(step := runner.step([state])[0], Continue):
        state = step.state
        assert step.partial is not None
        seen.append((step.done, np.abs(step.partial.data["preview"].astype(int))))
    assert [done for done, _ in seen] == pytest.approx([n / 9 for n in range(1, 9)])
    last = image(step.output).astype(int)
    off = [np.abs(preview - last).mean() for _, preview in seen]
    assert off[-1] < off[0], "later ones are nearer to the image"


@pytest.mark.breadth(but=("PNDMScheduler",))
@pytest.mark.parametrize("scheduler", ["DDPMScheduler", "EulerAncestralDiscreteScheduler", "PNDMScheduler"])
def test_an_image_does_not_depend_on_what_shares_its_batch(tmp_path: Path, scheduler: str) -> None:
    source = a_painter(tmp_path, scheduler)
    runner = diffusion.load(source)
    wishes = [told(), told("and", steps=4, seed=9), told(other="a cat", guidance_scale=3.0)]
    alone = [image(finish(runner, wish)[0]) for wish in wishes]
    states = [runner.admit(wishes[0])]
    for late in wishes[1:]:  # each a step behind the one before
        states = [step.state for step in runner.step(states) if isinstance(step, Continue)] + [runner.admit(late)]
    together = map(image, finish_states(runner, states))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def passes_of(network: Any, sizes: list[int]) -> Any:
    """Note how many images each pass of a network has, until the handle is removed."""
    return network.register_forward_hook(lambda _network, images, _answer: sizes.append(len(images[0])))


def test_on_a_device_images_that_begin_together_are_one_call(runner: CallRunner) -> None:
    assert not runner.together
    sizes: list[int] = []
    wishes = [told(), told("and", seed=5), told(seed=2), told(seed=2, guidance_scale=2.0)]
    alone = finish(runner, *wishes)
    handle = passes_of(runner.pipelines[Task.TEXT].unet, sizes)
    together = finish(replace(runner, together=True), *wishes)
    handle.remove()
    assert sizes == [6, 2] * 6, "guidance doubles images; those of another guidance are a call of their own"
    for one, other in zip(alone, together, strict=True):
        assert np.abs(image(one).astype(int) - image(other)).max() <= 1


@pytest.mark.parametrize("kind", ["nothing", "label"])
def test_images_without_a_text_are_one_call_too(tmp_path: Path, kind: str) -> None:
    source = {"nothing": a_dreamer, "label": a_labeller}[kind](tmp_path)
    runner = diffusion.load(source)
    assert isinstance(runner, CallRunner)
    wishes = [untold(), untold(seed=2)] if kind == "nothing" else [labelled(2), labelled(1, seed=5)]
    pipeline, sizes = next(iter(runner.pipelines.values())), list[int]()
    alone = finish(runner, *wishes)
    passes_of(pipeline.unet if kind == "nothing" else pipeline.transformer, sizes)
    together = finish(replace(runner, together=True), *wishes)
    assert sizes == [2 if kind == "nothing" else 4] * 6
    for one, other in zip(alone, together, strict=True):
        assert np.abs(image(one).astype(int) - image(other)).max() <= 1


def test_an_image_of_a_common_call_may_be_dropped_and_another_may_join(runner: CallRunner) -> None:
    common = replace(runner, together=True)
    wishes = [told(seed=seed) for seed in (1, 2, 3)]
    states: list[Any] = [step.state for step in common.step([common.admit(wish) for wish in wishes[:2]])]  # type: ignore[union-attr]
    kept = [states[1], common.admit(wishes[2])]
    for found, wish in zip(map(image, finish_states(common, kept)), wishes[1:], strict=True):
        assert np.abs(found.astype(int) - image(finish(runner, wish)[0])).max() <= 1


def test_a_common_call_that_failed_goes_on_with_each_image_alone(runner: CallRunner) -> None:
    common, sizes = replace(runner, together=True), list[int]()
    wishes = [told(seed=seed) for seed in (1, 2)]
    states: list[Any] = [common.admit(wish) for wish in wishes]
    states = [step.state for step in common.step(states) if isinstance(step, Continue)]
    unet = runner.pipelines[Task.TEXT].unet
    with failing(unet, at=1), pytest.raises(RuntimeError):
        common.step(states)
    handle = passes_of(unet, sizes)
    made = [image(finish_states(common, [state])[0]) for state in states]
    handle.remove()
    assert sizes == [2] * 12, "each begins anew"
    for found, wish in zip(made, wishes, strict=True):
        np.testing.assert_array_equal(found, image(finish(runner, wish)[0]))


@contextmanager
def failing(network: Any, at: int) -> Iterator[None]:
    """Fail a pass of a network, counted from 1."""
    passes = iter(range(1, 10**6))

    def check(*_: Any) -> None:
        if next(passes) == at:
            raise RuntimeError("a kernel failed")

    handle = network.register_forward_pre_hook(check)
    yield
    handle.remove()


@pytest.mark.breadth(but=("DDPMScheduler",))
@pytest.mark.parametrize("scheduler", ["DDPMScheduler", "PNDMScheduler"])
def test_a_step_that_failed_is_taken_again(tmp_path: Path, scheduler: str) -> None:
    source = a_painter(tmp_path, scheduler)
    runner = diffusion.load(source)
    assert isinstance(runner, CallRunner)
    wishes = [told(previews=20), told(seed=2, previews=20)]
    with failing(runner.pipelines[Task.TEXT].vae.decoder, at=8):
        states: list[Any] = [runner.admit(wish) for wish in wishes]
        for _ in range(3):
            states = [step.state for step in runner.step(states) if isinstance(step, Continue)]
        with pytest.raises(RuntimeError):
            runner.step(states)  # at the end of the second image's step: the first one's is over
    for found, wish in zip(map(image, finish_states(runner, states)), wishes, strict=True):
        np.testing.assert_array_equal(found, image(finish(runner, wish)[0]))


def test_previews_come_evenly_and_are_small(tmp_path: Path) -> None:
    source = a_painter(tmp_path)
    runner = diffusion.load(source)
    state, seen, shares = runner.admit(told(steps=9, previews=2, width=256, height=192)), [], []
    while isinstance(step := runner.step([state])[0], Continue):
        state = step.state
        shares.append(step.done)
        if step.partial is not None:
            assert step.partial.partial
            seen.append((step.partial.data["step"], step.partial.data["preview"]))
    assert [at for at, _ in seen] == [3, 6]
    assert shares == pytest.approx([n / 9 for n in range(1, 9)])
    assert {preview.shape for _, preview in seen} == {(96, 128, 3)}
    assert (seen[0][1] != seen[1][1]).any()
    last = image(step.output).reshape(96, 2, 128, 2, 3).mean(axis=(1, 3))
    off = [np.abs(preview - last).mean() for _, preview in seen]
    assert off[1] < off[0], "later ones are nearer to the image"


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def test_a_job_ends_between_two_steps(painter: Path, engine: BatchingEngine) -> None:
    model, stop, further = a_model(painter), threading.Event(), []

    def check() -> None:
        if stop.is_set():
            raise Canceled

    def on_batch(_: int, more: float) -> None:
        further.append(more)
        if len(further) == 3:
            stop.set()

    with ThreadPoolExecutor(1) as pool:
        prompts = iter([told(steps=999)])
        job = pool.submit(lambda: list(engine.run(model, prompts, check=check, on_batch=on_batch)))
        with pytest.raises(Canceled):
            job.result(WAIT_S)
    assert len(further) < 500
    assert further[0] == pytest.approx(1 / 999)
    [after] = engine.run(model, iter([told()]), check=lambda: None)
    np.testing.assert_array_equal(image(after), image(finish(diffusion.load(painter), told())[0]))


def test_jobs_at_different_steps_share_batches(painter: Path, engine: BatchingEngine) -> None:
    model, sizes, begun = a_model(painter), [], threading.Event()

    def on_batch(prompts: int, _: float) -> None:
        sizes.append(prompts)
        begun.set()

    def run(prompt: Prompt) -> list[Output]:
        return list(engine.run(model, iter([prompt]), check=lambda: None, on_batch=on_batch))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(run, told(steps=40))
        assert begun.wait(WAIT_S)
        second = pool.submit(run, told(steps=5, seed=2))
        [[one], [other]] = first.result(WAIT_S), second.result(WAIT_S)
    assert max(sizes) == 2
    runner = diffusion.load(painter)
    np.testing.assert_array_equal(image(one), image(finish(runner, told(steps=40))[0]))
    np.testing.assert_array_equal(image(other), image(finish(runner, told(steps=5, seed=2))[0]))


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ({"width": 60}, InvalidInput, "divisible by 8"),
        ({"steps": 1001}, InvalidInput, "cannot be larger than"),
        ({"seed": None}, ProcessorFailed, "`seed`"),
        ({"task": "sing"}, InvalidInput, "has the tasks text, image, inpaint, not sing"),
        ({"prompt": None}, ProcessorFailed, "`prompt`"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(
    runner: Runner, data: dict[str, Any], error: type[PenstockError], words: str
) -> None:
    with pytest.raises(error, match=words):
        finish(runner, told(**data))


def test_labels_that_the_network_does_not_know_are_refused(tmp_path: Path) -> None:
    labeller = diffusion.load(a_labeller(tmp_path))
    with pytest.raises(InvalidInput, match="labels 0 to 999, not 1000"):
        labeller.admit(labelled(1000))
    with pytest.raises(ProcessorFailed, match="`label`"):
        labeller.admit(labelled("shark"))


def test_a_network_that_answers_no_numbers_fails_its_job_and_no_other(tmp_path: Path, engine: BatchingEngine) -> None:
    good, bad = a_dreamer(tmp_path / "good"), a_dreamer(tmp_path / "bad")
    weights = bad / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(not_numbers(weights))
    with pytest.raises(ProcessorFailed, match="not a number"):
        list(engine.run(a_model(bad), iter([untold()]), check=lambda: None))
    model = a_model(good).model_copy(update={"name": "good"})
    [found] = engine.run(model, iter([untold()]), check=lambda: None)
    assert image(found).shape == (16, 16, 3)


def not_numbers(weights: Path) -> bytes:
    from safetensors.torch import load_file, save

    return save({name: tensor * float("nan") for name, tensor in load_file(weights).items()})


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda source: (source / "model_index.json").unlink(), "lacks the file model_index.json"),
        (
            lambda source: rewrite(source / "model_index.json", '"DDPMPipeline"', '"CogVideoXPipeline"'),
            "'CogVideoXPipeline', which is not supported",
        ),
        (lambda source: rewrite(source / "model_index.json", '"UNet2DModel"', '"UNet3D"'), "'unet' the class 'UNet3D'"),
        (lambda source: rewrite(source / "model_index.json", "DDPMScheduler", "Mine"), "'scheduler' the class 'Mine'"),
        (lambda source: rewrite(source / "unet/config.json", '"sample_size": 16', '"sample_size": 0'), "sample_size"),
        (
            lambda source: (source / "unet/diffusion_pytorch_model.safetensors").rename(source / "unet/weights.bin"),
            "pickled weights only",
        ),
        (lambda source: (source / "unet/diffusion_pytorch_model.safetensors").unlink(), "unet/ lacks the file"),
    ],
)
def test_a_directory_that_cannot_be_used_is_refused_unread(tmp_path: Path, wrong: Any, words: str) -> None:
    source = a_dreamer(tmp_path)
    wrong(source)
    with pytest.raises(ModelUnavailable, match=words):
        Runners.installed().check(a_model(source))


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_memory_that_it_takes_is_known_before(tmp_path: Path) -> None:
    source = a_painter(tmp_path)
    before = Runners.installed().expected_bytes(a_model(source))
    assert before > diffusion.load(source).memory_bytes > before // 2, "files have headers, and these tensors are tiny"
    (source / "safety_checker").mkdir()
    (source / "safety_checker" / "model.safetensors").write_bytes(bytes(10**6))
    (source / "unet" / "diffusion_pytorch_model.fp16.safetensors").write_bytes(bytes(10**6))
    assert Runners.installed().expected_bytes(a_model(source)) == before


def test_damaged_or_missing_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = a_dreamer(tmp_path)
    weights = source / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    first = sorted(tensors)[0]
    save_file({name: tensor for name, tensor in tensors.items() if name != first}, weights)
    with pytest.raises(ModelUnavailable, match=f"unet/ .*lack 1, the first is '{first}'"):
        diffusion.load(source)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ModelUnavailable, match="files of unet/ do not make a network"):
        diffusion.load(source)
