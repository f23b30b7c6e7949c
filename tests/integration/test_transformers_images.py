"""Images through the runner `transformers`, against the library's own forward pass and pipeline."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.transformers.images import best_classes
from tests.support.hub import a_model, a_segformer, a_vit, a_vit_backbone, an_image, finish, load, save

pytestmark = pytest.mark.library


def own(auto_class: Any, directory: Path) -> Any:
    return auto_class.from_pretrained(directory, local_files_only=True).eval()


@torch.inference_mode()
def test_labels_have_the_logits_of_the_library(tmp_path: Path) -> None:
    directory = a_vit(tmp_path)
    images = [an_image(3, 32, 32, seed=seed) for seed in range(3)]
    with closing(load(directory)) as runner:
        outputs = finish(runner, *(Prompt({"pixels": image}) for image in images))
    network = own(transformers.AutoModelForImageClassification, directory)
    expected = network(pixel_values=torch.from_numpy(np.stack(images))).logits.numpy()
    for output, logits in zip(outputs, expected, strict=True):
        assert (output.data["logits"].shape, output.data["logits"].dtype) == ((4,), np.float32)
        np.testing.assert_allclose(output.data["logits"], logits, rtol=1e-4, atol=1e-5)


def test_an_image_alone_gets_the_same_bits_every_time(tmp_path: Path) -> None:
    prompt = Prompt({"pixels": an_image(3, 32, 32)})
    directory = a_vit(tmp_path)
    outputs = []
    for _ in range(2):
        with closing(load(directory)) as runner:
            outputs += [finish(runner, prompt)[0], finish(runner, prompt)[0]]
    assert len({output.data["logits"].tobytes() for output in outputs}) == 1


@pytest.mark.parametrize("channels", [3, 6])
@torch.inference_mode()
def test_probabilities_are_those_of_the_library_at_the_prompts_own_size(tmp_path: Path, channels: int) -> None:
    directory = a_segformer(tmp_path, num_channels=channels)
    pixels = an_image(channels, 64, 96)
    with closing(load(directory)) as runner:
        (output,) = finish(runner, Prompt({"pixels": pixels}))
    network = own(transformers.AutoModelForSemanticSegmentation, directory)
    logits = network(pixel_values=torch.from_numpy(pixels[None])).logits
    assert logits.shape[-2:] == (16, 24)
    enlarged = torch.nn.functional.interpolate(logits, size=(64, 96), mode="bilinear", align_corners=False)
    probability = output.data["probability"]
    assert (probability.shape, probability.dtype) == ((5, 64, 96), np.float32)
    np.testing.assert_allclose(probability, enlarged.softmax(dim=1)[0].numpy(), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_classes_have_the_size_that_the_prompt_asks_for_and_are_those_of_the_library(tmp_path: Path) -> None:
    directory = a_segformer(tmp_path, num_labels=19)
    pixels = an_image(3, 64, 64)
    with closing(load(directory)) as runner:
        (output,) = finish(runner, Prompt({"pixels": pixels, "size": [71, 45]}))
    network = own(transformers.AutoModelForSemanticSegmentation, directory)
    outputs = network(pixel_values=torch.from_numpy(pixels[None]))
    processor = transformers.SegformerImageProcessorPil()
    (expected,) = processor.post_process_semantic_segmentation(outputs, target_sizes=[(71, 45)])
    classes = output.data["classes"]
    assert (classes.shape, classes.dtype) == ((71, 45), np.uint8)
    assert len(np.unique(classes)) > 3
    assert np.mean(classes == expected.numpy()) > 0.999


def test_the_option_answer_makes_classes_of_prompts_that_name_no_size(tmp_path: Path) -> None:
    directory = a_segformer(tmp_path)
    prompt = Prompt({"pixels": an_image(3, 64, 64)})
    with closing(load(directory, options={"answer": "classes"})) as runner, closing(load(directory)) as plain:
        classes = finish(runner, prompt)[0].data["classes"]
        assert np.array_equal(classes, finish(plain, prompt)[0].data["probability"].argmax(axis=0))


@pytest.mark.parametrize(("count", "dtype"), [(3, torch.uint8), (21, torch.uint8), (300, torch.uint16)])
def test_the_best_class_is_found_a_few_classes_at_a_time(count: int, dtype: torch.dtype) -> None:
    logits = torch.randn(2, count, 5, 7, generator=torch.Generator().manual_seed(1))
    # Two equal classes: the first one wins, as with argmax.
    logits[:, -1] = logits[:, 0] = 9.0
    enlarged = torch.nn.functional.interpolate(logits, size=(12, 9), mode="bilinear", align_corners=False)
    best = best_classes(logits, (12, 9))
    assert best.dtype == dtype
    assert torch.equal(best.long(), enlarged.argmax(dim=1))


def test_tiles_of_different_scenes_do_not_depend_on_each_other_on_a_cpu(tmp_path: Path) -> None:
    model = a_model(a_segformer(tmp_path, num_channels=6))
    prompts = [Prompt({"pixels": an_image(6, 64, 64, seed=seed)}) for seed in range(4)]
    with closing(Runners.installed().load(model)) as runner:
        assert runner.max_batch == 1
        alone = [finish(runner, prompt)[0].data["probability"] for prompt in prompts]
    with closing(BatchingEngine(Runners.installed())) as engine:
        outputs = [output.data["probability"] for output in engine.run(model, iter(prompts), check=lambda: None)]
    assert all(np.array_equal(*pair) for pair in zip(outputs, alone, strict=True))


def test_prompts_that_ask_for_another_size_share_no_batch(tmp_path: Path) -> None:
    with closing(load(a_segformer(tmp_path))) as runner:
        image = an_image(3, 32, 32)
        plain, small, large = (
            runner.bucket(Prompt({"pixels": image, **size})) for size in ({}, {"size": [9, 9]}, {"size": [18, 9]})
        )
        assert len({plain, small, large}) == 3
        assert small == runner.bucket(Prompt({"pixels": an_image(3, 32, 32, seed=2), "size": [9, 9]}))


class TestEmbeddings:
    @torch.inference_mode()
    def test_an_image_s_embedding_is_the_pooled_one_of_length_one(self, tmp_path: Path) -> None:
        directory = a_vit_backbone(tmp_path)
        pixels = an_image(3, 32, 32)
        with closing(load(directory)) as runner:
            (output,) = finish(runner, Prompt({"pixels": pixels}))
        network = own(transformers.AutoModel, directory)
        pooled = network(pixel_values=torch.from_numpy(pixels[None])).pooler_output[0]
        assert (output.data["embedding"].shape, output.data["embedding"].dtype) == ((16,), np.float32)
        np.testing.assert_allclose(output.data["embedding"], pooled / pooled.norm(), rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("pooling", ["cls", "mean"])
    @torch.inference_mode()
    def test_options_choose_another_pooling_and_its_length(self, tmp_path: Path, pooling: str) -> None:
        directory = a_vit_backbone(tmp_path)
        pixels = an_image(3, 32, 32)
        with closing(load(directory, options={"pooling": pooling, "normalize": False})) as runner:
            (output,) = finish(runner, Prompt({"pixels": pixels}))
        hidden = own(transformers.AutoModel, directory)(pixel_values=torch.from_numpy(pixels[None])).last_hidden_state
        expected = hidden[0, 0] if pooling == "cls" else hidden[0].mean(dim=0)
        np.testing.assert_allclose(output.data["embedding"], expected, rtol=1e-4, atol=1e-5)

    @torch.inference_mode()
    def test_clip_embeds_images_by_its_projection(self, tmp_path: Path) -> None:
        torch.manual_seed(5)
        small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.CLIPConfig(
            text_config={**small, "vocab_size": 50},
            vision_config={**small, "image_size": 32, "patch_size": 8},
            projection_dim=8,
        )
        directory = save(transformers.CLIPModel(config), tmp_path)
        pixels = an_image(3, 32, 32)
        with closing(load(directory)) as runner:
            (output,) = finish(runner, Prompt({"pixels": pixels}))
        network = own(transformers.AutoModel, directory)
        vision = network.vision_model(pixel_values=torch.from_numpy(pixels[None])).pooler_output
        expected = network.visual_projection(vision)[0]
        np.testing.assert_allclose(output.data["embedding"], expected / expected.norm(), rtol=1e-4, atol=1e-5)

    def test_a_pooler_that_the_directory_lacks_is_not_made_up(self, tmp_path: Path) -> None:
        torch.manual_seed(6)
        config = transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=32,
            patch_size=8,
        )
        directory = save(transformers.ViTModel(config, add_pooling_layer=False), tmp_path)
        with pytest.raises(ModelUnavailable, match=r"lacks 2 of the weights that ViTModel needs.*'pooler.dense.bias'"):
            load(directory)
        with closing(load(directory, options={"pooling": "cls"})) as runner:
            assert finish(runner, Prompt({"pixels": an_image(3, 32, 32)}))[0].data["embedding"].shape == (16,)


@pytest.mark.parametrize(
    ("pixels", "sentence"),
    [
        (None, r"takes `pixels`, a float32 array \(channels, height, width\)"),
        (np.zeros((3, 32, 32), np.uint8), r"takes `pixels`, a float32 array \(channels, height, width\)"),
        (np.zeros((4, 32, 32), np.float32), "takes 3 channels, the prompt has 4"),
        (np.zeros((3, 40, 32), np.float32), "takes images of 32 x 32 pixels, not 40 x 32"),
        (np.zeros((3, 0, 32), np.float32), "takes no empty image"),
    ],
)
def test_pixels_that_do_not_fit_are_refused_with_what_is_needed(tmp_path: Path, pixels: Any, sentence: str) -> None:
    kind = ProcessorFailed if "takes `pixels`" in sentence else InvalidInput
    with closing(load(a_vit(tmp_path))) as runner, pytest.raises(kind, match=sentence):
        runner.admit(Prompt({"pixels": pixels}))


@pytest.mark.breadth(every=3)
@pytest.mark.parametrize("size", [[0, 5], [5], "5", [5.0, 5], [True, 5], [70_000, 5]])
def test_a_size_that_makes_no_sense_is_refused(tmp_path: Path, size: Any) -> None:
    with closing(load(a_segformer(tmp_path))) as runner, pytest.raises(InvalidInput, match="`size` is"):
        runner.admit(Prompt({"pixels": an_image(3, 32, 32), "size": size}))


def test_bfloat16_gives_float32_probabilities_near_those_of_float32(tmp_path: Path) -> None:
    directory = a_segformer(tmp_path)
    prompt = Prompt({"pixels": an_image(3, 64, 64)})
    with closing(load(directory)) as full, closing(load(directory, dtype="bfloat16")) as reduced:
        exact, near = (finish(runner, prompt)[0].data["probability"] for runner in (full, reduced))
    assert near.dtype == np.float32
    assert not np.array_equal(exact, near)
    assert np.mean(exact.argmax(axis=0) == near.argmax(axis=0)) > 0.9


def test_a_closed_runner_has_given_its_weights_back(tmp_path: Path) -> None:
    runner: Any = load(a_vit(tmp_path))
    assert runner.memory_bytes == (tmp_path / "model.safetensors").stat().st_size - _header(tmp_path)
    runner.close()
    assert {parameter.device.type for parameter in runner.network.parameters()} == {"meta"}


def _header(directory: Path) -> int:
    """Return what a safetensors file has beside its tensors."""
    with (directory / "model.safetensors").open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")
