"""Quantised checkpoints: what they answer is what the library answers from the same directory."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers

from penstock.errors import ModelUnavailable
from penstock.processors.base import Prompt
from penstock.workers.engine.engine import BatchingEngine
from penstock.workers.engine.runners import Runners
from penstock.workers.engine.torch.device import weights_bytes
from penstock.workers.engine.transformers.loading import check_transformers
from tests.support.hub import a_model, a_vit, an_image, finish, load, needs_stories, save, tokens
from tests.support.language import STORIES, a_prompt, new, spoken
from tests.support.multimodal import a_llava, clip_tower
from tests.support.quantisation import CHAT, PICTURE, TEXT, a_llama, declared, in_fp8, in_int8, in_nf4, in_packed_int4

pytestmark = pytest.mark.breadth

PROMPTS = [Prompt({"input_ids": tokens(*ids), "max_new_tokens": 12}) for ids in ((3, 4, 5), (6, 7), range(8, 20))]
LIVES = {"int8": in_int8, "nf4": in_nf4}
MADE = {**LIVES, "packed int4": in_packed_int4, "fp8": in_fp8}
Make = Callable[[Path, Path], Path]


@torch.inference_mode()
def theirs(network: Any, prompt: Prompt, **also: Any) -> list[int]:
    """Return how the library continues a prompt, without the end token."""
    ids = torch.from_numpy(prompt.data["input_ids"])[None]
    options = {"max_new_tokens": prompt.data["max_new_tokens"], "do_sample": False, "pad_token_id": 0}
    whole = network.eval().generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options, **also)
    ends = network.generation_config.eos_token_id
    return [token for token in whole[0, ids.shape[1] :].tolist() if token != ends]


@torch.inference_mode()
def behind_the_best(network: Any, prompt: Prompt, answer: list[int]) -> list[float]:
    """Return how far each token of an answer is behind the library's best one, as a share of the largest logit."""
    if not answer:
        return []
    asked = prompt.data["input_ids"].tolist()
    logits = network.eval()(input_ids=torch.tensor([asked + answer])).logits[0, len(asked) - 1 : -1].float()
    chosen = logits[torch.arange(len(answer)), torch.tensor(answer, dtype=torch.long)]
    return ((logits.amax(dim=1) - chosen) / logits.abs().amax()).tolist()


def opened(folder: Path, auto_class: str = TEXT) -> Any:
    """Return a network as the library loads it."""
    return getattr(transformers, auto_class).from_pretrained(folder).eval()


def a_wide_vit(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    a_vit(folder, hidden_size=64, intermediate_size=128, num_labels=32)
    return save(transformers.AutoModelForImageClassification.from_pretrained(folder, dtype=dtype), folder)


def a_wide_llava(folder: Path) -> Path:
    wide = {"hidden_size": 64, "intermediate_size": 128}
    text = transformers.LlamaConfig(
        **wide, num_hidden_layers=2, num_attention_heads=2, vocab_size=300, max_position_embeddings=256,
        initializer_range=0.2, eos_token_id=257, pad_token_id=257,
    )  # fmt: skip
    return a_llava(folder, vision_config=clip_tower(**wide), text_config=text)


def ours(folder: Path, *prompts: Prompt, **fields: Any) -> list[list[int]]:
    with closing(load(folder, **fields)) as runner:
        return [new(output) for output in finish(runner, *prompts)]


@pytest.mark.parametrize("made", MADE)
def test_a_text_goes_on_as_the_library_continues_it(tmp_path: Path, made: str) -> None:
    plain = a_llama(tmp_path / "plain")
    folder = MADE[made](plain, tmp_path / "quantised")
    expected = [theirs(opened(folder), prompt) for prompt in PROMPTS]
    assert ours(folder, *PROMPTS) == expected
    if made != "fp8":
        assert expected != [theirs(opened(plain), prompt) for prompt in PROMPTS], "quantising that changes nothing"


@needs_stories
def test_eight_bits_tell_a_story(tmp_path: Path) -> None:
    prompt = a_prompt(max_new_tokens=40)
    folder = in_int8(STORIES, tmp_path)
    with closing(load(folder)) as runner:
        [output] = finish(runner, prompt)
    assert new(output) == theirs(opened(folder), prompt)
    assert spoken(output).startswith("Once upon a time, there was a little girl named Lily.")


@pytest.mark.parametrize("made", LIVES)
def test_weights_stay_quantised_and_count_as_such(tmp_path: Path, made: str) -> None:
    plain = a_llama(tmp_path / "plain")
    folder = LIVES[made](plain, tmp_path / "quantised")
    with closing(load(plain)) as runner:
        whole = runner.memory_bytes
    with closing(load(folder)) as runner:
        finish(runner, *PROMPTS)
        network: Any = runner.network
        kinds = {name: weight.dtype for name, weight in network.named_parameters() if "_proj" in name}
        assert set(kinds.values()) == {torch.int8 if made == "int8" else torch.uint8}
        assert len(kinds) == 14
        layers = sum(weight.numel() for weight in opened(plain).model.layers.parameters())
        rest = whole - 4 * layers
        assert runner.memory_bytes < rest + layers * (1.1 if made == "int8" else 0.8)
        # Their scales count, too: the file has all of it, and its own head.
        assert runner.memory_bytes == pytest.approx(Runners.installed().expected_bytes(a_model(folder)), rel=0.2)
        assert weights_bytes(network) < 1.05 * runner.memory_bytes, "a pass made it larger"


@pytest.mark.parametrize("made", LIVES)
def test_a_model_that_makes_way_lets_go_of_its_weights(tmp_path: Path, made: str) -> None:
    runner = load(LIVES[made](a_llama(tmp_path / "plain"), tmp_path / "quantised"))
    finish(runner, PROMPTS[0])
    network: Any = runner.network  # type: ignore[attr-defined]
    kept = [weakref.ref(network.model.layers[0].mlp.up_proj), weakref.ref(network.get_input_embeddings().weight)]
    runner.close()
    assert [one() for one in kept] == [None, None]


@pytest.mark.parametrize("made", ["packed int4", "fp8"])
def test_what_the_processor_must_unpack_is_unpacked_when_it_is_loaded(tmp_path: Path, made: str) -> None:
    folder = MADE[made](a_llama(tmp_path / "plain"), tmp_path / "quantised")
    with closing(load(folder)) as runner:
        taken = runner.memory_bytes
        finish(runner, PROMPTS[0])
        network: Any = runner.network
        assert weights_bytes(network) == taken
        assert network.model.layers[0].mlp.up_proj.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("made", LIVES)
def test_what_is_not_quantised_keeps_its_precision_whatever_the_record_says(
    tmp_path: Path, made: str, dtype: str
) -> None:
    folder = LIVES[made](a_llama(tmp_path / "plain", torch.bfloat16), tmp_path / "quantised")
    with closing(load(folder, dtype=dtype)) as runner:
        network: Any = runner.network
        kinds = {weight.dtype for weight in network.parameters()}
        assert kinds == {torch.bfloat16, torch.int8 if made == "int8" else torch.uint8}
        outputs = finish(runner, *PROMPTS)
    behind = [
        share
        for output, prompt in zip(outputs, PROMPTS, strict=True)
        for share in behind_the_best(opened(folder), prompt, new(output))
    ]
    assert len(behind) > 10
    assert max(behind) < 0.05, "more than bfloat16 rounds off"


def test_what_is_unpacked_has_the_record_s_dtype(tmp_path: Path) -> None:
    folder = in_packed_int4(a_llama(tmp_path / "plain"), tmp_path / "quantised")
    for dtype in ("float32", "bfloat16"):
        with closing(load(folder, dtype=dtype)) as runner:
            kinds = {weight.dtype for weight in runner.network.parameters()}  # type: ignore[attr-defined]
            assert {kind for kind in kinds if kind.is_floating_point} == {getattr(torch, dtype)}


def test_a_classifier_of_halves_needs_a_record_that_says_so(tmp_path: Path) -> None:
    folder = in_int8(a_wide_vit(tmp_path / "plain", torch.bfloat16), tmp_path / "quantised", PICTURE)
    with pytest.raises(ModelUnavailable, match=r"unquantised part of its weights is bfloat16 .* `dtype = .bfloat16"):
        load(folder, processor="image-classification")
    pixels = an_image(3, 32, 32)
    with closing(load(folder, processor="image-classification", dtype="bfloat16")) as runner:
        [output] = finish(runner, Prompt({"pixels": pixels}))
    with torch.inference_mode():
        expected = opened(folder, PICTURE)(pixel_values=torch.from_numpy(pixels)[None].bfloat16()).logits[0].float()
    np.testing.assert_allclose(output.data["logits"], expected.numpy(), atol=0.05 * float(expected.abs().max()))


@pytest.mark.parametrize("made", LIVES)
def test_a_chat_about_a_picture_goes_on_as_in_the_library(tmp_path: Path, made: str) -> None:
    folder = LIVES[made](a_wide_llava(tmp_path / "plain"), tmp_path / "quantised", CHAT)
    ids = tokens(10, 11, *[256] * 16, 12, 13)
    pixels = an_image(1, 3, 32, 32)
    prompt = Prompt({"input_ids": ids, "max_new_tokens": 12, "inputs.pixel_values": pixels})
    [said] = ours(folder, prompt, processor="image-text-to-text")
    assert said == theirs(opened(folder, CHAT), prompt, pixel_values=torch.from_numpy(pixels))


@pytest.mark.parametrize("made", LIVES)
def test_a_picture_is_classified_as_by_the_library(tmp_path: Path, made: str) -> None:
    folder = LIVES[made](a_wide_vit(tmp_path / "plain"), tmp_path / "quantised", PICTURE)
    pixels = an_image(3, 32, 32)
    with closing(load(folder, processor="image-classification")) as runner:
        [output] = finish(runner, Prompt({"pixels": pixels}))
    with torch.inference_mode():
        expected = opened(folder, PICTURE)(pixel_values=torch.from_numpy(pixels)[None]).logits[0]
    np.testing.assert_allclose(output.data["logits"], expected.numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("made", LIVES)
def test_an_adapter_stays_beside_quantised_weights_as_in_peft(tmp_path: Path, made: str) -> None:
    folder = LIVES[made](a_llama(tmp_path / "plain"), tmp_path / "quantised")
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(22)
    peft.get_peft_model(opened(folder), config).save_pretrained(tmp_path / "lora")
    tuned: Any = peft.PeftModel.from_pretrained(opened(folder), tmp_path / "lora")
    expected = [theirs(tuned, prompt) for prompt in PROMPTS]
    assert expected != ours(folder, *PROMPTS), "an adapter that changes nothing tells nothing"
    assert ours(folder, *PROMPTS, options={"adapter": str(tmp_path / "lora")}) == expected


def check(folder: Path) -> None:
    check_transformers(a_model(folder, processor="text-generation"))


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (
            {"quant_method": "awq", "bits": 4},
            r"by 'awq', which needs packages that are not installed: pip install gptqmodel$",
        ),
        ({"quant_method": "higgs"}, r"by 'higgs', cannot be loaded here: .*(GPU|flute|hadamard)"),
        ({"quant_method": "guessed"}, r"by 'guessed', which this version of transformers lacks"),
        ({"bits": 4}, r"by 'None', cannot be loaded here: .* no `quant_method`"),
        ({"quant_method": "compressed-tensors", "config_groups": 4}, r"by 'compressed-tensors', cannot be loaded"),
        ("int8", r"`quantization_config` in config\.json is not an object"),
    ],
)
def test_what_cannot_be_loaded_here_is_said_before_any_weights_are_read(
    tmp_path: Path, told: Any, sentence: str
) -> None:
    folder = declared(a_llama(tmp_path), told)
    (folder / "model.safetensors").write_bytes(b"never read")
    with pytest.raises(ModelUnavailable, match=f"model 'tiny' cannot be loaded: .*{sentence}"):
        check(folder)
    with pytest.raises(ModelUnavailable, match=sentence):
        load(folder)


@pytest.mark.parametrize("made", ["int8", "packed int4", "fp8"])
def test_quantised_weights_are_not_taken_for_others(tmp_path: Path, made: str) -> None:
    files = MADE[made](a_llama(tmp_path / "whole"), tmp_path / "files")
    config = json.loads((files / "config.json").read_text())
    del config["quantization_config"]
    (files / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailable, match="its weights are quantised"):
        load(files)


def test_a_part_that_is_quantised_counts(tmp_path: Path) -> None:
    folder = a_llava(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["quantization_config"] = {"quant_method": "gptq"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelUnavailable, match="pip install gptqmodel optimum"):
        check_transformers(a_model(folder, processor="image-text-to-text"))


def test_a_checkpoint_that_cannot_be_loaded_keeps_no_other_from_serving(tmp_path: Path) -> None:
    ill = a_model(declared(a_llama(tmp_path / "ill"), {"quant_method": "awq", "bits": 4}))
    well = a_model(in_nf4(a_llama(tmp_path / "plain"), tmp_path / "well")).model_copy(update={"name": "well"})
    with closing(BatchingEngine(Runners.installed())) as engine:
        for model in (ill, well, ill, well):
            running = engine.run(model, iter(PROMPTS[:1]), check=lambda: None)
            if model is ill:
                with pytest.raises(ModelUnavailable, match="pip install gptqmodel"):
                    list(running)
            else:
                told = [new(output) for output in running if not output.partial]
                assert told == [theirs(opened(Path(well.source)), PROMPTS[0])]
