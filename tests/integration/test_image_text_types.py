"""Chats about images: each model type against the library's own processor and `generate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import save_file

from penstock.errors import InvalidInput, ModelUnavailable, OutOfMemory, ProcessorFailed
from penstock.intake.media import LocalMedia
from penstock.models import Limits
from penstock.processors.base import Prompt
from penstock.processors.multimodal.chat import ImageTextToText
from penstock.processors.registry import Registry
from penstock.processors.testing import LocalFiles, check_processor
from penstock.workers.compatibility import checked_entry
from penstock.workers.engine.base import Continue, Done
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.io.forks import ForkOptions
from penstock.workers.io.pool import IOPool
from penstock.workers.processing import Work
from tests.support.hub import a_model, finish, load
from tests.support.image_text_kinds import FIRST, KINDS
from tests.support.image_text_table import NEEDS_TORCHVISION, UNTRIED
from tests.support.image_text_types import END, write_kind

SHAPES = [(50, 120), (90, 40)]
QUESTION = "What is it?"
NEW = 12
MIB = 2**20
ROOT = Path(__file__).parents[2]
#: Types of `make test`: a decoder with tiles, and one with three axes of positions.
FEW = ("idefics3", "qwen2_5_vl")

#: The library's own, about numpy and its settings.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]

each_kind = pytest.mark.parametrize("kind", KINDS)


def a_picture(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


PICTURES = [Image.fromarray(a_picture(*shape)) for shape in SHAPES]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return two pictures by their references."""
    made = {}
    for number, picture in enumerate(PICTURES):
        made[f"media://{number}"] = tmp_path_factory.mktemp("pictures") / f"{number}.png"
        picture.save(made[f"media://{number}"])
    return made


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return Directories(tmp_path_factory)


class Directories(dict[str, Path]):
    """Directories of model types, each made when it is first asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        super().__init__()
        self._factory = factory

    def __missing__(self, kind: str) -> Path:
        pytest.importorskip(KINDS[kind].package) if KINDS[kind].package else None
        self[kind] = write_kind(kind, self._factory.mktemp("model") / kind)
        return self[kind]


def a_processor(directory: Path, **fields: Any) -> ImageTextToText:
    return ImageTextToText(a_model(directory, processor="image-text-to-text", **fields))


def a_chat(images: int, text: str = QUESTION) -> dict[str, Any]:
    shown = [{"type": "image", "image": f"media://{number}"} for number in range(images)]
    return {"messages": [{"role": "user", "content": [*shown, {"type": "text", "text": text}]}], "max_new_tokens": NEW}


def prompt_of(processor: ImageTextToText, files: dict[str, Path], images: int, text: str = QUESTION) -> Prompt:
    request = processor.request.model_validate(a_chat(images, text))
    [prompt] = processor.pre_process(request, LocalFiles(files)).prompts
    return prompt


def numbers_of_images(kind: str) -> list[int]:
    return [*([0] if KINDS[kind].text_only else []), *range(1, KINDS[kind].most + 1)]


def library_inputs(processor: Any, kind: str, images: int) -> Any:
    """Return what the library's own processor makes of the same chat."""
    shown = PICTURES[:images]
    if KINDS[kind].image is None:
        before = "<image>" * images if KINDS[kind].before else ""
        pictures = {} if not shown else {"images": [shown] if images > 1 else shown}
        return processor(text=before + QUESTION, return_tensors="pt", **pictures)
    content = [*({"type": "image", "image": picture} for picture in shown), {"type": "text", "text": QUESTION}]
    return processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip


@torch.inference_mode()
def generated(network: Any, inputs: Any) -> list[int]:
    """Return the library's answer: the new tokens without the end."""
    made = network.generate(**inputs, max_new_tokens=NEW, do_sample=False, num_beams=1)[0].tolist()
    return [token for token in made if token != FIRST]


@pytest.mark.breadth(but=FEW)
@each_kind
def test_answers_are_the_library_s(kind: str, directories: dict[str, Path], files: dict[str, Path]) -> None:
    directory = directories[kind]
    processor = a_processor(directory)
    network = transformers.AutoModelForImageTextToText.from_pretrained(directory, local_files_only=True).eval()
    said = set()
    with closing(load(directory, processor="image-text-to-text")) as runner:
        for images in numbers_of_images(kind):
            (output,) = finish(runner, prompt_of(processor, files, images))
            tokens = output.data["token_ids"]
            inputs = library_inputs(processor.encoder.processor, kind, images)
            # Some networks return the prompt before the answer.
            expected = generated(network, inputs)
            assert tokens, "a network that says nothing shows nothing"
            assert tokens == expected[-len(tokens) :], f"with {images} images"
            assert len(expected) - len(tokens) in (0, *_lengths(inputs)), "the answer was not cut"
            said |= set(tokens)
    assert len(said) > 1, "a network that says the same all the time shows nothing"


def processed(directory: Path, arrays: dict[str, Any], folder: Path) -> Prompt:
    """Return the prompt of processed inputs."""
    folder.mkdir(exist_ok=True)
    save_file({name: torch.as_tensor(array).contiguous() for name, array in arrays.items()}, folder / "in.safetensors")
    processor = a_processor(directory)
    request = processor.request.model_validate({"processed": "media://in", "max_new_tokens": NEW})
    [prompt] = processor.pre_process(request, LocalFiles({"media://in": folder / "in.safetensors"})).prompts
    return prompt


@pytest.mark.breadth(but=FEW)
@each_kind
def test_processed_inputs_are_the_prompt_of_their_chat(
    kind: str, directories: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> None:
    processor = a_processor(directories[kind])
    for images in numbers_of_images(kind):
        expected = prompt_of(processor, files, images).data
        inputs = library_inputs(processor.encoder.processor, kind, images)
        made = processed(directories[kind], _numbered(inputs), tmp_path).data
        assert made.keys() == expected.keys()
        for name, value in expected.items():
            if isinstance(value, np.ndarray):
                assert made[name].dtype == value.dtype
                np.testing.assert_array_equal(made[name], value)
            else:
                assert made[name] == value


def _numbered(inputs: Any) -> dict[str, Any]:
    """Return inputs by name; arrays of a list have numbers."""
    made = {}
    for name, value in inputs.items():
        if isinstance(value, list):
            made |= {f"{name}.{number}": one for number, one in enumerate(value)}
        elif value is not None:
            made[name] = value
    return made


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"pixel_values": None}, None),
        ({"input_ids": None}, "lacks `input_ids`, int64"),
        (
            {"input_ids": torch.ones(2, 5, dtype=torch.int64)},
            r"takes `input_ids` as int64 \(1, any\), not int64 \(2, 5\)",
        ),
        ({"input_ids": torch.ones(1, 5)}, r"takes `input_ids` as int64 \(1, any\), not float32"),
        ({"pixel_values": torch.ones(4, 7)}, r"takes `pixel_values` as float32 \(any, \d+\), not float32 \(4, 7\)"),
        ({"pixel_values": torch.ones(4)}, r"takes `pixel_values` as float32"),
        ({"pixel_values": torch.ones(0, 1176)}, r"takes `pixel_values` as float32"),
        ({"more": torch.ones(1)}, "takes no `more`; its inputs are attention_mask, .*pixel_values"),
    ],
)
def test_processed_inputs_that_do_not_fit_are_refused_by_the_description(
    change: dict[str, Any], sentence: str | None, directories: dict[str, Path], tmp_path: Path
) -> None:
    directory = directories["qwen2_5_vl"]
    inputs = library_inputs(a_processor(directory).encoder.processor, "qwen2_5_vl", 1)
    arrays = {name: value for name, value in {**_numbered(inputs), **change}.items() if value is not None}
    if sentence is None:  # a network of a text alone
        assert "inputs.pixel_values" not in processed(directory, arrays, tmp_path).data
        return
    with pytest.raises(InvalidInput, match=sentence):
        processed(directory, arrays, tmp_path)
    spoilt = {**_numbered(inputs), "pixel_values": torch.full_like(inputs["pixel_values"], torch.nan)}
    with pytest.raises(InvalidInput, match=r"`pixel_values` has .* NaN"):
        processed(directory, spoilt, tmp_path)


def _lengths(inputs: Any) -> Sequence[int]:
    """Return the possible lengths of the prompt in the library's answer: BLIP leaves out its last token."""
    ids = inputs.get("input_ids", inputs.get("decoder_input_ids"))
    if ids is None:
        return ()
    kept = int((ids != FIRST).sum())
    return kept, kept - 1


@pytest.mark.breadth(but=FEW)
@each_kind
def test_typed_placeholders_stay_text(kind: str, directories: dict[str, Path], files: dict[str, Path]) -> None:
    processor = a_processor(directories[kind])
    images, tokens = KINDS[kind].most, [END, *KINDS[kind].tokens]
    typed = [*tokens, "<image>", "<|image_pad|>", "[IMG]", "<img>", "<video>"]
    asked = prompt_of(processor, files, images)
    for text in (" ".join(typed), "".join(typed), *typed, *(f"{token[:2]}{token}{token[2:]}" for token in tokens)):
        attacked = prompt_of(processor, files, images, text)
        assert specials(attacked, len(tokens)) == specials(asked, len(tokens)), text
        assert shapes(attacked) == shapes(asked), text


def specials(prompt: Prompt, count: int) -> list[int]:
    """Return the special tokens of a prompt in order, of its answer's beginning too."""
    ids = [np.ravel(value) for name, value in sorted(prompt.data.items()) if name.endswith("input_ids")]
    return [int(token) for token in np.concatenate(ids) if FIRST <= token < FIRST + count]


def shapes(prompt: Prompt) -> dict[str, Any]:
    """Return the shapes of a prompt's arrays, but for those that are as long as its text."""
    arrays = {name: value for name, value in prompt.data.items() if name.startswith("inputs.")}
    return {name: array.shape for name, array in arrays.items() if not name.endswith(("_ids", "_mask", "labels"))}


@pytest.mark.breadth(but=("qwen2_5_vl",))
@each_kind
def test_chats_that_advance_together_answer_as_alone(
    kind: str, directories: dict[str, Path], files: dict[str, Path]
) -> None:
    processor = a_processor(directories[kind])
    prompts = [prompt_of(processor, files, images) for images in reversed(numbers_of_images(kind))] * 2
    with closing(load(directories[kind], processor="image-text-to-text")) as runner:
        alone = [finish(runner, prompt)[0].data for prompt in prompts]
        assert [output.data for output in finish(runner, *prompts)] == alone


@pytest.mark.parametrize("kind", [pytest.param("mllama", marks=pytest.mark.breadth), "qwen2_5_vl"])
def test_a_step_that_failed_is_repeated(kind: str, directories: dict[str, Path], files: dict[str, Path]) -> None:
    prompt = prompt_of(a_processor(directories[kind]), files, 1)
    runner: Any
    with closing(load(directories[kind], processor="image-text-to-text")) as runner:
        expected = finish(runner, prompt)[0].data
        passes = iter(range(100))

        def fail(*_: Any) -> None:
            if next(passes) in (0, 4, 9):
                raise torch.OutOfMemoryError

        hook = runner.network.register_forward_pre_hook(fail)
        state, step = runner.admit(prompt), None
        failures = 0
        while not isinstance(step, Done):
            try:
                [step] = runner.step([state])
            except OutOfMemory:
                failures += 1
                continue
            assert runner.step([state])[0] == step, "a repeated step is the same step"
            state = step.state if isinstance(step, Continue) else state
        hook.remove()
    assert failures == 3
    assert step.output.data == expected


@pytest.mark.parametrize("kind", ["idefics3", pytest.param("mllama", marks=pytest.mark.breadth)])
def test_in_bfloat16_images_are_seen_too(kind: str, directories: dict[str, Path], files: dict[str, Path]) -> None:
    processor = a_processor(directories[kind])
    with closing(load(directories[kind], processor="image-text-to-text", dtype="bfloat16")) as runner:
        said = [finish(runner, prompt_of(processor, files, images))[0].data["token_ids"] for images in (1, 2)]
    assert [len(tokens) for tokens in said] == [NEW, NEW]
    assert said[0] != said[1]


def test_sampling_follows_the_seed(directories: dict[str, Path], files: dict[str, Path]) -> None:
    processor = a_processor(directories["idefics3"])
    with closing(load(directories["idefics3"], processor="image-text-to-text")) as runner:

        def said(seed: int) -> Any:
            request = processor.request.model_validate({**a_chat(1), "temperature": 2.0, "seed": seed})
            [prompt] = processor.pre_process(request, LocalFiles(files)).prompts
            return finish(runner, prompt)[0].data["token_ids"]

        assert said(1) == said(1)
        assert said(1) != said(2)


def test_a_prompt_that_is_too_long_says_by_how_many_tokens(
    directories: dict[str, Path], files: dict[str, Path]
) -> None:
    processor = a_processor(directories["idefics3"])
    given = len(prompt_of(processor, files, 1).data["input_ids"])
    short = a_processor(directories["idefics3"], limits=Limits(max_tokens=given + NEW - 3))
    with pytest.raises(InvalidInput, match=f"has {given} tokens and needs room for {NEW} more; .*That is 3 too many"):
        prompt_of(short, files, 1)


def test_more_images_than_the_limit_are_refused(directories: dict[str, Path], files: dict[str, Path]) -> None:
    processor = a_processor(directories["idefics3"], limits=Limits(max_items=1))
    with pytest.raises(InvalidInput, match="at most 1"):
        prompt_of(processor, files, 2)


@pytest.mark.skipif(transformers.utils.is_torchvision_available(), reason="torchvision is installed")
def test_a_video_is_refused_at_once_where_nothing_prepares_it(directories: dict[str, Path]) -> None:
    content = [{"type": "video", "video": "media://0"}, {"type": "text", "text": QUESTION}]
    with pytest.raises(ValidationError, match=r"'video' found .* expected tags: 'text', 'image'"):
        a_processor(directories["qwen2_5_vl"]).request.model_validate(
            {"messages": [{"role": "user", "content": content}]}
        )


def test_texts_that_form_a_token_around_an_image_are_refused(
    directories: dict[str, Path], files: dict[str, Path]
) -> None:
    processor = a_processor(directories["idefics3"])
    content = [
        {"type": "text", "text": "<ima"}, {"type": "image", "image": "media://0"}, {"type": "text", "text": "ge>"},
    ]  # fmt: skip
    request = processor.request.model_validate({"messages": [{"role": "user", "content": content}]})
    with pytest.raises(InvalidInput, match="form one of the model's special tokens together"):
        processor.pre_process(request, LocalFiles(files))


def test_images_behind_a_text_are_refused_where_the_processor_puts_them_first(
    directories: dict[str, Path], files: dict[str, Path]
) -> None:
    processor = a_processor(directories["paligemma"])
    shown, said = {"type": "image", "image": "media://0"}, {"type": "text", "text": QUESTION}
    for content in ([said, shown], [shown, said, shown]):
        request = processor.request.model_validate({"messages": [{"role": "user", "content": content}]})
        with pytest.raises(InvalidInput, match="takes all images before the text"):
            processor.pre_process(request, LocalFiles(files))


def test_a_network_that_needs_an_image_refuses_a_text(directories: dict[str, Path], files: dict[str, Path]) -> None:
    prompt = prompt_of(a_processor(directories["blip"]), files, 0)
    lacking = pytest.raises(InvalidInput, match="prompts with an image alone: this one lacks pixel_values")
    with closing(load(directories["blip"], processor="image-text-to-text")) as runner, lacking:
        runner.admit(prompt)


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        ({"inputs.pixel_values": [1.0]}, ProcessorFailed, "`inputs.pixel_values` as an array of numbers"),
        ({"input_ids": np.array([5000])}, InvalidInput, "the network knows the tokens 0 to 319"),
        ({"input_ids": np.zeros(2048, np.int64)}, InvalidInput, "the network's context is 2048 tokens"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    directories: dict[str, Path], files: dict[str, Path], change: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    prompt = prompt_of(a_processor(directories["idefics3"]), files, 1)
    refused = pytest.raises(kind, match=sentence)
    with closing(load(directories["idefics3"], processor="image-text-to-text")) as runner, refused:
        runner.admit(Prompt({**prompt.data, **change}))


@pytest.mark.breadth
def test_a_job_goes_through_an_io_process_and_the_engine(
    directories: dict[str, Path], files: dict[str, Path], tmp_path: Path
) -> None:
    """The library is imported in the template, whose forks share it: there are no threads after loading."""
    model = a_model(directories["qwen2_5_vl"], processor="image-text-to-text")
    media = {reference: LocalMedia(path) for reference, path in files.items()}
    parts: list[str] = []
    with closing(IOPool(2, ForkOptions(4096 * MIB))) as pool, closing(BatchingEngine(Runners.installed())) as engine:
        assert pool.entry(model).problem is None
        work = Work(model, a_chat(2), media, tmp_path, tenant="one")
        with pool.open(work, check=lambda: None, say=parts.append) as session:
            done = session.finish(
                engine.run(model, session.prepared.prompts, check=lambda: None, cost=session.prepared.cost)
            )
    processor = a_processor(directories["qwen2_5_vl"])
    with closing(load(directories["qwen2_5_vl"], processor="image-text-to-text")) as runner:
        (output,) = finish(runner, prompt_of(processor, files, 2))
    assert done.result.data is not None
    assert done.result.data["usage"]["completion_tokens"] == len(output.data["token_ids"])
    assert done.result.text == "".join(parts)


@pytest.mark.parametrize("kind", ["gemma3", pytest.param("pix2struct", marks=pytest.mark.breadth)])
def test_the_processor_keeps_its_contract(kind: str, directories: dict[str, Path], files: dict[str, Path]) -> None:
    model = a_model(directories[kind], processor="image-text-to-text", max_batch=1)
    with closing(BatchingEngine(Runners.installed())) as engine:
        done = check_processor(
            ImageTextToText(model), a_chat(1), files, other={**a_chat(1, "Who?"), "temperature": 0.9, "seed": 4},
            engine=lambda prompts: engine.run(model, prompts, check=lambda: None),
        )  # fmt: skip
    assert done.result.data is not None
    assert done.result.data["usage"]["completion_tokens"] > 0


def problem_of(directory: Path, **config: Any) -> str:
    """Return what `penstock models check` says of a directory."""
    if config:
        known = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**known, **config}))
    model = a_model(directory, processor="image-text-to-text")
    problem = checked_entry(Registry.installed(), Runners.installed(), model).problem
    if problem is None:
        try:
            Runners.installed().check(model)
        except ModelUnavailable as error:
            return str(error)
    return problem or ""


@pytest.mark.skipif(transformers.utils.is_torchvision_available(), reason="torchvision is installed")
@pytest.mark.breadth(but=("mistral3", "llama4"))
@pytest.mark.parametrize("model_type", NEEDS_TORCHVISION)
def test_a_type_that_needs_torchvision_is_refused_when_it_is_checked(model_type: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert "prepared by torchvision alone, which is not installed here: `pip install" in problem_of(tmp_path)


def test_a_type_that_needs_code_of_its_own_is_refused(tmp_path: Path) -> None:
    code = {"AutoProcessor": "processing.TheirProcessor", "AutoModel": "modeling.Theirs"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "theirs", "auto_map": code}))
    (tmp_path / "processing.py").write_text("raise SystemExit('it ran')")
    assert "needs code of its own directory (`auto_map`), which Penstock does not run" in problem_of(tmp_path)


def test_a_type_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert "no processor of images and text for the model_type 'llama'" in problem_of(tmp_path)


def test_a_damaged_directory_is_refused(tmp_path: Path) -> None:
    broken = write_kind("paligemma", tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{}")
    assert "do not make the processor of the model_type 'paligemma'" in problem_of(broken)


def test_every_type_of_the_library_is_accounted_for() -> None:
    """A new version of the library brings types that nobody has looked at: list them."""
    from transformers.models.auto import modeling_auto

    known = set(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
    listed = [*KINDS, *NEEDS_TORCHVISION, *UNTRIED]
    assert sorted(listed) == sorted(set(listed)), "no type is listed twice"
    if transformers.__version__.startswith("5.23."):
        assert set(listed) == known
