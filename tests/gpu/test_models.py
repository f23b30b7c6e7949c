"""Models of every kind on a GPU, against themselves on the processor: the same but for the noise of floating point."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.errors import Canceled, ModelUnavailable
from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.processors.registry import Registry
from penstock.processors.testing import LocalFiles
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.integration.test_diffusers_images import labelled, told, untold
from tests.integration.test_transformers_adapters import a_llama
from tests.integration.test_transformers_conversation import MESSAGES, a_picture
from tests.integration.test_transformers_speech import a_recording
from tests.support import diffusion, hub, multimodal, onnx_files, vision
from tests.support.engine_jobs import never
from tests.support.gpu_device import DEVICE, farthest, needs_cuda
from tests.support.hub import an_image, tokens

pytestmark = [
    needs_cuda,
    #: Warnings of numpy 2 about diffusers' older schedulers, and of torch about its own parts.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
]

#: Greatest difference of float32 on the device from float32 on the processor, as a share of the largest number.
NOISE = 1e-4
PIXELS = [Prompt({"pixels": an_image(3, 32, 32, seed=seed)}, cost=1) for seed in range(6)]
TILES = [Prompt({"pixels": an_image(6, 64, 96, seed=seed)}, cost=1) for seed in range(6)]
TEXTS = [Prompt({"input_ids": tokens(*range(2, 2 + length))}, cost=1) for length in (3, 9, 20, 9, 4)]
OPENINGS = [
    Prompt({"input_ids": tokens(*range(first, first + 6)), "max_new_tokens": 16}, cost=1) for first in range(3, 9)
]

Make = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have convolutions compute in float32, not in TF32: small networks with random weights blow the difference up."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def engine() -> Iterator[BatchingEngine]:
    with closing(BatchingEngine(Runners.installed())) as engine:
        yield engine


def run(engine: BatchingEngine, model: Model, prompts: Sequence[Prompt], name: str) -> list[Output]:
    """Run each prompt as a job of its own, all at a time."""
    model = model.model_copy(update={"name": name})

    def job(prompt: Prompt) -> Output:
        *_, last = engine.run(model, iter([prompt]), check=never)
        return last

    with ThreadPoolExecutor(len(prompts)) as jobs:
        return list(jobs.map(job, prompts))


def compare(engine: BatchingEngine, model: Model, prompts: Sequence[Prompt], *, most: float = NOISE) -> float:
    """Return how far the device's outputs are from the processor's."""
    ours = run(engine, model.model_copy(update={"device": DEVICE}), prompts, "there")
    theirs = run(engine, model.model_copy(update={"device": "cpu"}), prompts, "here")
    found = max(farthest(one.data, other.data) for one, other in zip(ours, theirs, strict=True))
    assert found <= most
    return found


@pytest.fixture
def said(record_property: Any, request: pytest.FixtureRequest) -> Callable[[float], None]:
    """Return what tells a test's figure."""
    name = request.node.callspec.id if hasattr(request.node, "callspec") else request.node.name
    return lambda found: record_property("figures", f"{name}: {found:.1e} from the processor")


@pytest.mark.parametrize(
    ("make", "prompts", "options"),
    [
        (hub.a_vit, PIXELS, {}),
        (hub.a_vit_backbone, PIXELS, {}),
        (hub.a_vit_backbone, PIXELS, {"pooling": "mean"}),
        (lambda folder: hub.a_segformer(folder, num_channels=6), TILES, {}),
        (lambda folder: hub.a_segformer(folder, num_channels=6), TILES, {"answer": "classes"}),
        (hub.a_bert, TEXTS, {"pooling": "mean"}),
        (a_llama, OPENINGS, {}),
        (hub.a_whisper, [a_recording(seed=seed, language="en") for seed in range(3)], {}),
        (hub.a_wav2vec2, [Prompt({"sound": hub.an_image(8000, seed=seed)}) for seed in range(3)], {}),
        (hub.an_ast, [Prompt({"sound": hub.an_image(128, 64, seed=seed)}) for seed in range(3)], {}),
    ],
    ids=[
        "labels",
        "embeddings",
        "means",
        "probabilities",
        "classes",
        "texts",
        "generation",
        "speech",
        "samples",
        "bands",
    ],
)
def test_networks_of_the_hub_say_what_they_say_on_the_processor(
    make: Make, prompts: list[Prompt], options: dict[str, Any], tmp_path: Path, engine: BatchingEngine,
    said: Callable[[float], None],
) -> None:  # fmt: skip
    said(compare(engine, hub.a_model(make(tmp_path / "m"), options=options), prompts))


@pytest.mark.parametrize("make", [hub.a_vit, hub.a_segformer])
def test_in_bfloat16_they_are_near(
    make: Callable[..., Path], tmp_path: Path, engine: BatchingEngine, said: Callable[[float], None]
) -> None:
    model = hub.a_model(make(tmp_path / "m", initializer_range=0.1))
    ours = run(engine, model.model_copy(update={"device": DEVICE, "dtype": "bfloat16"}), PIXELS, "there")
    theirs = run(engine, model, PIXELS, "here")
    found = max(farthest(one.data, other.data) for one, other in zip(ours, theirs, strict=True))
    said(found)
    assert 0 < found <= 0.1


def answered(engine: BatchingEngine, model: Model, request: dict[str, Any], files: dict[str, Path]) -> list[Output]:
    """Return what the engine answers to the prompts that the model's processor makes of a request."""
    processor = Registry.imported().processor_for(model)
    prepared = processor.pre_process(processor.request.model_validate(request), LocalFiles(files))
    return [output for output in engine.run(model, prepared.prompts, check=never) if not output.partial]


@pytest.mark.parametrize(
    ("make", "processor"),
    [
        (vision.a_detr, "object-detection"),
        (vision.an_rt_detr, "object-detection"),
        (vision.a_yolos, "object-detection"),
        (vision.a_dpt, "depth-estimation"),
        (vision.a_mask2former, "instance-segmentation"),
    ],
)
def test_photographs_have_the_boxes_depths_and_masks_of_the_processor(
    make: Make, processor: str, tmp_path: Path, engine: BatchingEngine, said: Callable[[float], None]
) -> None:
    picture = vision.a_picture(tmp_path / "a.png")
    model = hub.a_model(make(tmp_path / "m"), processor=processor, max_batch=2)
    found = []
    for name, device in (("there", DEVICE), ("here", "cpu")):
        placed = model.model_copy(update={"name": name, "device": device})
        found.append(answered(engine, placed, {"image": "media://a"}, {"media://a": picture}))
    ours, theirs = found
    apart = max(farthest(one.data, other.data) for one, other in zip(ours, theirs, strict=True))
    said(apart)
    assert apart < 1e-3


@pytest.mark.parametrize("kind", ["llava", "granite_vision", "qwen2_vl"])
def test_chats_about_pictures_are_those_of_the_processor(kind: str, tmp_path: Path, engine: BatchingEngine) -> None:
    files = {}
    for number, shape in enumerate([(50, 120), (90, 40), (32, 32)]):
        files[f"media://{number}"] = path = tmp_path / f"{number}.png"
        Image.fromarray(a_picture(*shape)).save(path)
    model = hub.a_model(multimodal.MADE[kind](tmp_path / kind), processor="image-text-to-text")
    request = {"messages": MESSAGES, "max_new_tokens": 16}
    there, here = (
        answered(engine, model.model_copy(update={"name": device, "device": device}), request, files)
        for device in (DEVICE, "cpu")
    )
    assert there[-1].data == here[-1].data


@pytest.mark.parametrize("kind", ["text", "noise", "label"])
def test_images_out_of_noise_are_those_of_the_processor(
    kind: str, tmp_path: Path, engine: BatchingEngine, said: Callable[[float], None]
) -> None:
    make = {"text": diffusion.a_painter, "noise": diffusion.a_dreamer, "label": diffusion.a_labeller}[kind]
    source = make(tmp_path)
    wishes = {
        "text": lambda seed: told(seed=seed),
        "noise": lambda seed: untold(seed=seed),
        "label": lambda seed: labelled(1, seed=seed),
    }
    prompts = [wishes[kind](seed) for seed in range(4)]
    model = diffusion.a_model(source)
    there = run(engine, model.model_copy(update={"device": DEVICE}), prompts, "there")
    here = run(engine, model, prompts, "here")
    pairs = [(one.data["image"].astype(int), other.data["image"]) for one, other in zip(there, here, strict=True)]
    apart = [np.abs(ours - theirs) for ours, theirs in pairs]
    said(max(int(each.max()) for each in apart))
    assert max(float(each.mean()) for each in apart) < 1
    assert all(np.ptp(one.data["image"]) > 20 for one in there)


def test_a_job_ends_between_two_steps_and_the_next_one_succeeds(tmp_path: Path, engine: BatchingEngine) -> None:
    source, stop, batches = diffusion.a_painter(tmp_path), threading.Event(), []
    model = diffusion.a_model(source, device=DEVICE)

    def check() -> None:
        if stop.is_set():
            raise Canceled

    def on_batch(_: int, more: float) -> None:
        batches.append(more)
        if len(batches) == 3:
            stop.set()

    with pytest.raises(Canceled):
        list(engine.run(model, iter([told(steps=900)]), check=check, on_batch=on_batch))
    assert len(batches) < 450
    [after] = engine.run(model, iter([told()]), check=never)
    assert after.data["image"].shape == (64, 64, 3)


def test_models_of_several_kinds_work_side_by_side(tmp_path: Path, engine: BatchingEngine) -> None:
    made: list[tuple[Model, list[Prompt]]] = [
        (hub.a_model(hub.a_vit(tmp_path / "vit")), PIXELS),
        (hub.a_model(hub.a_segformer(tmp_path / "seg", num_channels=6)), TILES),
        (hub.a_model(a_llama(tmp_path / "llama")), OPENINGS),
        (diffusion.a_model(diffusion.a_painter(tmp_path / "sd")), [told(seed=s) for s in range(3)]),
    ]
    placed = [(model.model_copy(update={"device": DEVICE}), prompts) for model, prompts in made]
    alone = [run(engine, model, prompts, f"m{number}") for number, (model, prompts) in enumerate(placed)]

    def again(number: int) -> list[Output]:
        return run(engine, *placed[number % len(placed)], f"m{number % len(placed)}")

    with ThreadPoolExecutor(12) as jobs:
        rounds = list(jobs.map(again, range(3 * len(placed))))
    for number, outputs in enumerate(rounds):
        for one, other in zip(outputs, alone[number % len(placed)], strict=True):
            assert farthest(one.data, other.data) < 0.05  # an image's last bits are its neighbours'
    assert len(engine.loaded()) == len(placed)


def test_an_onnx_network_runs_on_the_processor_or_says_what_it_needs(tmp_path: Path) -> None:
    import onnxruntime

    path = onnx_files.conv(tmp_path / "net.onnx")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime uses CUDA")
    with pytest.raises(ModelUnavailable, match="pip install onnxruntime-gpu"):
        onnx_files.load(path, device="cuda")
    with closing(onnx_files.load(path, device="auto")) as runner:
        [found] = hub.finish(runner, Prompt({"pixels": an_image(6, 20, 30)}))
    assert next(iter(found.data.values())).ndim == 3


@pytest.mark.slow
def test_a_compiled_network_gives_the_same_answers(tmp_path: Path, engine: BatchingEngine) -> None:
    model = hub.a_model(hub.a_segformer(tmp_path, num_channels=6), device=DEVICE)
    plain = run(engine, model, TILES, "plain")
    torch.compiler.reset()
    compiled = run(engine, model.model_copy(update={"options": {"compile": True}}), TILES, "compiled")
    assert max(farthest(one.data, other.data) for one, other in zip(compiled, plain, strict=True)) < 1e-2
