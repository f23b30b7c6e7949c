"""Models that the library's own calls serve, from a record to a result: an inpainting, and an encoder-decoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import penstock
from penstock.errors import InvalidInput
from tests.support.pipelines import byte_tokenizer, made
from tests.support.tiny_types import small


def catalogue(folder: Path, source: Path, runner: str, processor: str) -> Path:
    path = folder / "models.toml"
    path.write_text(
        f'[models.mine]\ntitle = "M"\nrunner = "{runner}"\nprocessor = "{processor}"\nsource = "{source}"\n'
        'revision = "1"\ndevice = "cpu"\nlimits = { max_pixels = 65536, max_steps = 20 }\n'
    )
    return path


@pytest.mark.breadth
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_part_of_an_image_is_painted_anew(tmp_path: Path) -> None:
    source = made("stable-diffusion-xl", tmp_path / "sdxl")
    Image.new("RGB", (64, 64), "red").save(tmp_path / "image.png")
    mask = np.zeros((64, 64), np.uint8)
    mask[:, :32] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    files = {"image": tmp_path / "image.png", "mask": tmp_path / "mask.png"}
    with penstock.Engine(catalogue=[catalogue(tmp_path, source, "diffusers", "image-generation")]) as engine:
        seen = []
        result = engine.run(
            "mine", **files, prompt="a cat", steps=4, strength=1.0, out=tmp_path / "made",
            on_progress=lambda *told: seen.append(told),
        )  # fmt: skip
        again = engine.run("mine", **files, prompt="a cat", steps=4, strength=1.0, out=tmp_path / "again")
        with pytest.raises(InvalidInput, match="true_cfg_scale has no meaning in StableDiffusionXLPipeline"):
            engine.run("mine", prompt="a cat", true_cfg_scale=2, out=tmp_path / "refused")
    assert result.data is not None
    assert {"task": "inpaint", "width": 64, "height": 64, "strength": 1.0}.items() <= result.data.items()
    [one, other] = [each.artifacts["image-1.png"].path.read_bytes() for each in (result, again)]
    assert one == other
    assert any(progress.total == 4 for _, progress in seen)


def test_an_encoder_decoder_answers_a_text(tmp_path: Path) -> None:
    torch.manual_seed(4)
    config = small("t5")
    config.vocab_size = 300
    source = tmp_path / "t5"
    network = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    network.save_pretrained(source)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(source)
    with penstock.Engine(catalogue=[catalogue(tmp_path, source, "transformers", "text-generation")]) as engine:
        found = engine.run("mine", prompt="a cat and a hat", max_new_tokens=8)
        # Places of the prompt and of the answer count apart: the tokenizer names 64.
        longest = engine.run("mine", prompt="a" * 60, max_new_tokens=8)
        with pytest.raises(InvalidInput, match=r"66 tokens; the model takes 64\. That is 2 too many"):
            engine.run("mine", prompt="a" * 65)
    ids = torch.tensor([tokenizer("a cat and a hat").input_ids])
    expected = network.eval().generate(ids, max_new_tokens=8, do_sample=False)[0][1:]
    assert found.text == tokenizer.decode(expected, skip_special_tokens=True)
    assert found.data is not None
    assert found.data["usage"]["prompt_tokens"] == len(ids[0])
    assert longest.data is not None
