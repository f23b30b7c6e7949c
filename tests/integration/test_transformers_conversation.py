"""Directories of LLaVA, Granite Vision and Qwen2-VL as they are published, against the library's own parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.processors.base import Output, Prompt
from penstock.processors.multimodal.chat import ImageTextToText
from penstock.processors.testing import Finished, LocalFiles, check_processor
from penstock.workers.engine.base import Continue, Runner, Step
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from tests.support.hub import a_model, finish, load
from tests.support.multimodal import (
    IMAGE,
    MADE,
    TEMPLATE,
    a_granite_vision,
    a_llava,
    a_llava_next,
    siglip_tower,
)

pytestmark = pytest.mark.library

SHAPES = [(50, 120), (90, 40), (32, 32)]
NEW = 24


def a_picture(height: int, width: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return three pictures by their references."""
    made = {}
    for number, shape in enumerate(SHAPES):
        path = tmp_path / f"{number}.png"
        Image.fromarray(a_picture(*shape)).save(path)
        made[f"media://{number}"] = path
    return made


@pytest.fixture(params=MADE)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return MADE[request.param](tmp_path / request.param)


def image(number: int) -> dict[str, str]:
    return {"type": "image", "image": f"media://{number}"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


#: Several turns, several pictures, one of them twice, with text before and after.
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [text("Left: "), image(0), text(" right: "), image(1), text(" differ?")]},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": [image(2), image(0), text("And these?")]},
]
SHOWN = (0, 1, 2, 0)


def prompt_of(directory: Path, files: dict[str, Path], messages: Sequence[Any] = MESSAGES, **wish: Any) -> Prompt:
    processor = ImageTextToText(a_model(directory, processor="image-text-to-text"))
    request = processor.request.model_validate({"messages": messages, "max_new_tokens": NEW, **wish})
    [prompt] = processor.pre_process(request, LocalFiles(files)).prompts
    return prompt


def theirs(directory: Path) -> dict[str, Any]:
    """Return what the library makes of the same conversation, by its own processor."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    parts = [[text(m["content"])] if isinstance(m["content"], str) else m["content"] for m in MESSAGES]
    messages = [{**message, "content": content} for message, content in zip(MESSAGES, parts, strict=True)]
    template = (directory / "chat_template.jinja").read_text()
    said = tokenizer.apply_chat_template(messages, chat_template=template, add_generation_prompt=True, tokenize=False)
    pictures = [a_picture(*SHAPES[number]) for number in SHOWN]
    options = {"input_data_format": "channels_last"}
    config = json.loads((directory / "config.json").read_text())
    match config["model_type"]:
        case "llava":
            eyes = CLIPImageProcessorPil.from_pretrained(directory)
            made = LlavaProcessor(eyes, tokenizer, 8, "default", num_additional_image_tokens=1)
        case "llava_next":
            eyes = LlavaNextImageProcessorPil.from_pretrained(directory)
            strategy = config["vision_feature_select_strategy"]
            made = LlavaNextProcessor(eyes, tokenizer, 8, strategy, num_additional_image_tokens=strategy == "default")
        case _:  # its processor wants torchvision
            eyes = Qwen2VLImageProcessorPil.from_pretrained(directory)
            return qwens(eyes, tokenizer, said, pictures, options)
    found: dict[str, Any] = dict(made(images=pictures, text=said, return_tensors="pt", images_kwargs=options))
    return found


def qwens(eyes: Any, tokenizer: Any, said: str, pictures: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    seen = eyes(pictures, return_tensors="pt", **options)
    pieces = said.split("<|image_pad|>")
    counts = [int(grid.prod()) // 4 for grid in seen["image_grid_thw"]]
    said = "".join(a + "<|image_pad|>" * n for a, n in zip(pieces, [*counts, 0], strict=True))
    ids = tokenizer(said, return_tensors="pt", add_special_tokens=False)["input_ids"]
    return {"input_ids": ids, **seen, "mm_token_type_ids": (ids == 256).int()}


def generated(directory: Path, inputs: dict[str, Any]) -> list[int]:
    network: Any = transformers.AutoModelForImageTextToText.from_pretrained(directory, local_files_only=True).eval()
    told = {name: value for name, value in inputs.items() if name != "attention_mask"}
    ids = told["input_ids"]
    whole = network.generate(**told, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
    return [int(token) for token in whole[0, ids.shape[1] :] if token != 257]


def test_inputs_are_the_library_s(directory: Path, files: dict[str, Path]) -> None:
    """The directories lack `processor_config.json`, as those of before transformers 4.46."""
    prompt, expected = prompt_of(directory, files), theirs(directory)
    np.testing.assert_array_equal(prompt.data["input_ids"], expected["input_ids"][0])
    for name in expected.keys() - {"input_ids"}:
        np.testing.assert_array_equal(prompt.data[f"inputs.{name}"], expected[name], name)


@pytest.mark.breadth(but=("qwen2_vl", "llava_next"))
@torch.inference_mode()
def test_an_answer_is_the_library_s(directory: Path, files: dict[str, Path]) -> None:
    with closing(load(directory, processor="image-text-to-text")) as runner:
        (output,) = finish(runner, prompt_of(directory, files))
    expected = generated(directory, theirs(directory))
    assert len(set(expected)) > 3, "a network that says the same all the time tells nothing"
    assert output.data["token_ids"] == expected
    assert output.data["finish_reason"] == ("length" if len(expected) == NEW else "stop")


@pytest.mark.breadth(but=("granite_vision",))
def test_what_the_network_sees_counts(directory: Path, files: dict[str, Path]) -> None:
    other = {**files, "media://0": files["media://1"]}
    with closing(load(directory, processor="image-text-to-text")) as runner:
        said = [finish(runner, prompt_of(directory, shown))[0].data["token_ids"] for shown in (files, other)]
        swapped = [MESSAGES[0], {"role": "user", "content": [image(1), text("?"), image(0)]}]
        ordered = [MESSAGES[0], {"role": "user", "content": [image(0), text("?"), image(1)]}]
        said += [finish(runner, prompt_of(directory, files, m))[0].data["token_ids"] for m in (swapped, ordered)]
    assert said[0] != said[1]
    assert said[2] != said[3], "pictures have an order"


@pytest.mark.breadth(but=("llava",))
def test_a_chat_without_pictures_is_the_library_s(directory: Path, files: dict[str, Path]) -> None:
    prompt = prompt_of(directory, files, [{"role": "user", "content": "Who is there?"}])
    assert "inputs.pixel_values" not in prompt.data
    with closing(load(directory, processor="image-text-to-text")) as runner:
        with_picture, alone = finish(runner, prompt_of(directory, files), prompt)
        assert with_picture.data["token_ids"] == finish(runner, prompt_of(directory, files))[0].data["token_ids"]
    assert alone.data["token_ids"] == generated(
        directory, {"input_ids": torch.from_numpy(prompt.data["input_ids"])[None]}
    )


@pytest.fixture
def eyes(tmp_path: Path) -> Iterator[Runner]:
    with closing(load(a_granite_vision(tmp_path / "eyes"), processor="image-text-to-text")) as runner:
        yield runner


class Tower:
    """Counts how many pictures a network encodes."""

    def __init__(self, runner: Any) -> None:
        self.seen = 0
        runner.network.model.vision_tower.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.seen += 1


def test_pictures_are_encoded_once_and_then_known(eyes: Any, tmp_path: Path, files: dict[str, Path]) -> None:
    tower = Tower(eyes)
    prompt = prompt_of(tmp_path / "eyes", files, [{"role": "user", "content": [image(1), text("What?")]}])
    (first,) = finish(eyes, prompt)
    assert (tower.seen, first.counts) == (1, {"encoder_hits": 0, "encoder_misses": 1})
    assert eyes.encodings.held_bytes > 0, "what a worker tells of the cache is that of its runners"
    other = prompt_of(tmp_path / "eyes", files, [{"role": "user", "content": [image(1), text("Another chat")]}])
    (again,) = finish(eyes, other)
    assert (tower.seen, again.counts) == (1, {"encoder_hits": 1, "encoder_misses": 0})
    (elsewhere,) = finish(eyes, Prompt(other.data, other.cost, tenant="other"))
    assert (tower.seen, elsewhere.counts) == (2, {"encoder_hits": 0, "encoder_misses": 1})
    assert elsewhere.data == again.data
    with closing(load(tmp_path / "eyes", processor="image-text-to-text")) as fresh:
        assert finish(fresh, other)[0].data == again.data


def test_a_cache_of_no_bytes_encodes_each_time(tmp_path: Path, files: dict[str, Path]) -> None:
    directory = a_llava(tmp_path / "eyes")
    prompt, none = prompt_of(directory, files), {"encoder_cache_bytes": 0}
    with closing(load(directory, processor="image-text-to-text", options=none)) as runner:
        counts = [finish(runner, prompt)[0].counts for _ in range(2)]
    assert counts == [{"encoder_hits": 0, "encoder_misses": 1}] * 2


def test_a_first_step_may_be_repeated_and_pictures_are_let_go(
    eyes: Runner, tmp_path: Path, files: dict[str, Path]
) -> None:
    state = eyes.admit(prompt_of(tmp_path / "eyes", files))
    first, again = (eyes.step([state])[0] for _ in range(2))
    assert isinstance(first, Continue)
    assert first == again
    step: Step = first
    while isinstance(step, Continue):
        [step] = eyes.step([step.state])
    assert not first.state.held.inputs


def test_places_that_do_not_fit_fail_alone(tmp_path: Path, files: dict[str, Path]) -> None:
    directory = a_granite_vision(tmp_path / "eyes")
    good = prompt_of(directory, files)
    bad = Prompt({**good.data, "input_ids": np.where(good.data["input_ids"] == 256, 3, good.data["input_ids"])})
    model = a_model(directory, processor="image-text-to-text")
    with closing(BatchingEngine(Runners.installed())) as engine:
        with pytest.raises(InvalidInput, match="Image features and image tokens do not match"):
            list(engine.run(model, iter([bad]), check=lambda: None))
        answers = [out for out in engine.run(model, iter([good]), check=lambda: None) if not out.partial]
    with closing(load(directory, processor="image-text-to-text")) as runner:
        assert answers[0].data == finish(runner, good)[0].data


def test_in_bfloat16_pictures_are_seen_too(tmp_path: Path, files: dict[str, Path]) -> None:
    directory = a_llava_next(tmp_path / "eyes")
    with closing(load(directory, processor="image-text-to-text", dtype="bfloat16")) as runner:
        (output,) = finish(runner, prompt_of(directory, files))
    assert len(output.data["token_ids"]) == NEW


@pytest.mark.breadth
def test_several_feature_layers_of_a_llava(tmp_path: Path, files: dict[str, Path]) -> None:
    directory = a_llava(
        tmp_path / "eyes", vision_config=siglip_tower(), vision_feature_layer=[-2, -1],
        vision_feature_select_strategy="full",
    )  # fmt: skip
    prompt = prompt_of(directory, files)
    with closing(load(directory, processor="image-text-to-text")) as runner:
        (output,) = finish(runner, prompt)
    pixels = torch.from_numpy(prompt.data["inputs.pixel_values"])
    ids = torch.from_numpy(prompt.data["input_ids"])[None]
    assert output.data["token_ids"] == generated(directory, {"input_ids": ids, "pixel_values": pixels})


@pytest.fixture
def check() -> Iterator[Callable[..., Finished]]:
    """Return the conformance test on the real engine."""
    with closing(BatchingEngine(Runners.installed())) as engine:

        def check(directory: Path, request: Any, other: Any, files: dict[str, Path]) -> Finished:
            model = a_model(directory, processor="image-text-to-text", max_batch=1)

            def answer(prompts: Iterator[Prompt]) -> Iterator[Output]:
                return engine.run(model, prompts, check=lambda: None)

            return check_processor(ImageTextToText(model), request, files, engine=answer, other=other)

        yield check


@pytest.mark.breadth(but=("qwen2_vl",))
def test_the_processor_keeps_its_contract(check: Any, directory: Path, files: dict[str, Path]) -> None:
    request = {"messages": MESSAGES, "max_new_tokens": 10}
    other = {"images": ["media://1"], "prompt": "What is this?", "max_new_tokens": 5, "temperature": 0.9, "seed": 4}
    done = check(directory, request, other, files)
    usage = (done.result.data or {})["usage"]
    assert usage["prompt_tokens"] == len(prompt_of(directory, files).data["input_ids"])
    assert (usage["completion_tokens"], done.result.data["finish_reason"]) == (10, "length")


def test_the_option_preprocessor_stands_for_its_file(tmp_path: Path, files: dict[str, Path]) -> None:
    directory = a_llava(tmp_path / "eyes")
    expected = prompt_of(directory, files).data["inputs.pixel_values"]
    path = directory / "preprocessor_config.json"
    given = json.loads(path.read_text())
    path.unlink()
    model = a_model(directory, processor="image-text-to-text", options={"preprocessor": given})
    processor = ImageTextToText(model)
    request = processor.request.model_validate({"messages": MESSAGES})
    [prompt] = processor.pre_process(request, LocalFiles(files)).prompts
    np.testing.assert_array_equal(prompt.data["inputs.pixel_values"], expected)


def test_a_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    directory = a_llava(tmp_path)
    with pytest.raises(ModelUnavailable, match=r"is for the task 'image-text-to-text', and `options.task` is"):
        load(directory, processor="image-text-to-text", options={"task": "text-generation"})
    with pytest.raises(ModelUnavailable, match=r"'text-generation' does not fit model_type 'llava'.*image-text"):
        load(directory, processor="text-generation")


def test_a_template_may_stand_in_the_tokenizer_s_file(tmp_path: Path, files: dict[str, Path]) -> None:
    directory = a_llava(tmp_path / "eyes")
    expected = prompt_of(directory, files).data["input_ids"]
    (directory / "chat_template.jinja").unlink()
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    np.testing.assert_array_equal(prompt_of(directory, files).data["input_ids"], expected)


@pytest.mark.parametrize("change", [(IMAGE, ""), (IMAGE, IMAGE * 2)])
def test_a_template_without_one_place_for_an_image_is_refused(tmp_path: Path, change: tuple[str, str]) -> None:
    path = a_llava(tmp_path) / "chat_template.jinja"
    path.write_text(TEMPLATE.replace(*change))
    with pytest.raises(ModelUnavailable, match=r"takes no chat of a text and an image: .*number of <image> tokens"):
        ImageTextToText(a_model(tmp_path, processor="image-text-to-text"))
