"""Image generation: prompts from requests and files from outputs, with numpy instead of networks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from penstock.errors import ConfigError, InvalidInput, ModelUnavailable, PenstockError, ProcessorFailed
from penstock.models import Limits, limited
from penstock.processors.base import Output, Prompt
from penstock.processors.image_generation.generation import ImageGeneration
from penstock.processors.testing import FolderSink, LocalFiles, check_processor, check_request_module
from tests.support.diffusion import a_dreamer, a_labeller, a_model, a_painter


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_painter(tmp_path_factory.mktemp("painter"))


def network(data: Mapping[str, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return an image whose pixels depend on the prompt."""
    seed = data["seed"] + sum(data.get("prompt", "").encode()) + data.get("label", 0)
    shape = data["height"], data["width"], 3
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def engine(prompts: Iterator[Prompt]) -> Iterator[Output]:
    for prompt in prompts:
        for step in range(prompt.data.get("previews", 0)):
            yield Output({"preview": network(prompt.data)[::2, ::2], "step": step + 1}, partial=True)
        cut = [name for name in ("prompt", "negative_prompt") if len(prompt.data.get(name, "")) > 77]
        yield Output({"image": network(prompt.data), "truncated": cut})


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


def prompts_of(source: Path, request: dict[str, Any], **fields: Any) -> list[Prompt]:
    processor = ImageGeneration(a_model(source, **fields))
    return list(processor.pre_process(processor.request.model_validate(request), LocalFiles({})).prompts)


def test_images_say_how_they_were_made(source: Path) -> None:
    processor = ImageGeneration(a_model(source))
    check_request_module(processor)
    request = {
        "prompt": "a cat", "negative_prompt": "a hat", "n": 2, "seed": 7, "steps": 30, "guidance_scale": 3.5,
        "width": 72, "previews": 2,
    }  # fmt: skip
    other = {"prompt": "and", "format": "webp"}
    done = check_processor(processor, request, {}, engine=engine, other=other, limits=Limits(max_pixels=1024))
    how = {
        "model": "painter", "revision": "1", "task": "text", "width": 72, "height": 64, "steps": 30,
        "guidance_scale": 3.5, "prompt": "a cat", "negative_prompt": "a hat",
    }  # fmt: skip
    images = [{"name": "image-1.png", "seed": 7}, {"name": "image-2.png", "seed": 8}]
    assert done.result.data == {"images": images, **how}
    for number, prompt in enumerate(prompts_of(source, request), start=1):
        media_type, content = done.artifacts[f"image-{number}.png"]
        assert media_type == "image/png"
        np.testing.assert_array_equal(np.asarray(opened(content)), network(prompt.data))
        assert json.loads(opened(content).info["parameters"]) == {**how, "seed": 6 + number}


def test_webp_is_without_loss_and_says_the_same(source: Path) -> None:
    processor = ImageGeneration(a_model(source))
    request = {"prompt": "ein Hütchen", "format": "webp"}
    done = check_processor(processor, request, {}, engine=engine)
    media_type, content = done.artifacts["image-1.webp"]
    assert media_type == "image/webp"
    [prompt] = prompts_of(source, request)
    np.testing.assert_array_equal(np.asarray(opened(content)), network(prompt.data))
    how = json.loads(opened(content).getexif()[0x010E])
    assert (how["prompt"], how["steps"], how["guidance_scale"]) == ("ein Hütchen", 50, 7.5)


class ShowingSink(FolderSink):
    """A sink that keeps previews."""

    shown: list[tuple[str, str, bytes]]

    def show(self, name: str, image: bytes, *, media_type: str) -> None:
        self.shown.append((name, media_type, image))


def test_what_is_on_its_way_is_shown(source: Path, tmp_path: Path) -> None:
    processor = ImageGeneration(a_model(source))
    request = processor.request.model_validate({"prompt": "a cat", "n": 2, "previews": 3})
    prepared = processor.pre_process(request, LocalFiles({}))
    assert (prepared.count, prepared.unit, prepared.steps) == (2, "steps", 50)
    sink = ShowingSink(tmp_path)
    object.__setattr__(sink, "shown", [])
    processor.post_process(engine(prepared.prompts), prepared.context, sink)
    assert [(name, media_type) for name, media_type, _ in sink.shown] == [
        *[("image-1.png", "image/webp")] * 3, *[("image-2.png", "image/webp")] * 3,
    ]  # fmt: skip
    assert {opened(image).size for _, _, image in sink.shown} == {(32, 32)}


def test_a_text_that_is_too_long_is_cut_and_named(source: Path) -> None:
    texts = {"prompt": "cat " * 40, "negative_prompt": "hat " * 40}
    done = check_processor(ImageGeneration(a_model(source)), {**texts, "n": 2}, {}, engine=engine)
    assert done.result.data is not None
    assert done.result.data["truncated"] == ["prompt", "negative_prompt"]


def test_a_label_is_a_name_or_a_number(tmp_path: Path) -> None:
    source = a_labeller(tmp_path)
    processor = ImageGeneration(a_model(source))
    done = check_processor(processor, {"label": "White Shark"}, {}, engine=engine, other={"label": 1})
    assert done.result.data is not None
    assert (done.result.data["label"], done.result.data["width"], done.result.data["guidance_scale"]) == (2, 32, 4.0)
    for name in ("Tinca tinca", "tench, Tinca tinca", "TENCH,tinca tinca"):
        assert prompts_of(source, {"label": name})[0].data["label"] == 0
    for label, words in (
        ("tench, goldfish", "has no label"),
        ("unicorn", "has no label 'unicorn'.*tench, goldfish"),
        (1000, "has 0 to 999"),
        (-1, "0 to 999"),
    ):
        with pytest.raises(InvalidInput, match=words) as caught:
            prompts_of(source, {"label": label})
        assert caught.value.errors[0].pointer == "/input/label"


def test_networks_of_other_than_1000_labels_are_refused(tmp_path: Path) -> None:
    source = a_labeller(tmp_path)
    config = source / "transformer" / "config.json"
    config.write_text(config.read_text().replace('"num_embeds_ada_norm": 1000', '"num_embeds_ada_norm": 10'))
    with pytest.raises(ModelUnavailable, match="has 10 labels, and DiTPipeline takes networks of 1000"):
        ImageGeneration(a_model(source))


def test_a_model_that_is_told_nothing_takes_nothing(tmp_path: Path) -> None:
    source = a_dreamer(tmp_path)
    processor = ImageGeneration(a_model(source, options={"steps": 5}))
    done = check_processor(processor, {"n": 2}, {}, engine=engine, other={"seed": 4})
    assert done.result.data is not None
    assert (done.result.data["steps"], done.result.data["width"], "guidance_scale" in done.result.data) == (
        5,
        16,
        False,
    )
    with pytest.raises(ValidationError, match="prompt"):
        processor.request.model_validate({"prompt": "a cat"})
    assert prompts_of(source, {})[0].data["steps"] == 999, "as many as its noise has, less the offset"
    plain = a_dreamer(tmp_path / "plain", steps_offset=0)
    assert prompts_of(plain, {})[0].data["steps"] == 1000


@pytest.mark.parametrize(
    ("request_", "limits", "pointer", "words"),
    [
        ({"n": 3}, {"max_items": 2}, "/input/n", "at most 2"),
        ({"steps": 30}, {"max_steps": 20}, "/input/steps", "at most 20"),
        ({"steps": 2000}, {}, "/input/steps", "at most 999"),
        ({"width": 128, "height": 128}, {"max_pixels": 128 * 127}, "/input/width", "128 x 128 are more"),
        ({"height": 100}, {}, "/input/height", "100 is not a multiple of 8"),
    ],
)
def test_limits_are_kept(
    source: Path, request_: dict[str, Any], limits: dict[str, int], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        prompts_of(source, {"prompt": "a", **request_}, limits=Limits(**limits))
    assert caught.value.errors[0].pointer == pointer


def test_the_schema_has_the_models_limits(source: Path) -> None:
    schema = ImageGeneration(a_model(source)).request.model_json_schema()
    found = limited(schema, Limits(max_items=4, max_steps=60))["properties"]
    assert (found["n"]["maximum"], found["steps"]["anyOf"][0]["maximum"]) == (4, 60)
    assert "x-" not in json.dumps(found).replace("x-suffixes", "")


def test_the_dummy_is_as_large_as_the_limits_allow(source: Path, tmp_path: Path) -> None:
    processor = ImageGeneration(a_model(source))
    sizes = {
        most: tuple(processor.dummy(Limits(max_pixels=most), tmp_path).request[side] for side in ("width", "height"))
        for most in (None, 10**6, 2000, 1)
    }
    assert sizes == {None: (64, 64), 10**6: (64, 64), 2000: (40, 40), 1: (8, 8)}


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"options": {"step": 3}}, ConfigError, "unknown options: step; known"),
        ({"options": {"steps": 0}}, ConfigError, "options.steps"),
        ({"options": {"guidance_scale": "much"}}, ConfigError, "options.guidance_scale"),
        ({"options": {"steps": 30}, "limits": Limits(max_steps=20)}, ConfigError, "more than limits.max_steps"),
    ],
)
def test_records_that_do_not_fit_are_refused(
    source: Path, fields: dict[str, Any], error: type[PenstockError], words: str
) -> None:
    with pytest.raises(error, match=words):
        ImageGeneration(a_model(source, **fields))


def test_nonsense_of_the_network_is_its_own_fault(source: Path, tmp_path: Path) -> None:
    processor = ImageGeneration(a_model(source))
    prepared = processor.pre_process(processor.request.model_validate({"prompt": "a"}), LocalFiles({}))
    with pytest.raises(ProcessorFailed, match="float32"):
        processor.post_process(
            iter([Output({"image": np.zeros((4, 4, 3), np.float32)})]), prepared.context, FolderSink(tmp_path)
        )
