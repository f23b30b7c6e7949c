"""LoRA adapters: what a model with one says is what PEFT's own model says."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from penstock.errors import ModelUnavailable
from penstock.processors.base import Prompt
from penstock.workers.engine.transformers.loading import check_transformers
from tests.support.hub import a_model, finish, load, save, tokens
from tests.support.multimodal import a_llava

#: PEFT 0.21 asks transformers 5.23 for what it calls otherwise now.
RENAMED = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
pytestmark = [pytest.mark.library, RENAMED]

PROMPT = Prompt({"input_ids": tokens(*range(3, 12)), "max_new_tokens": 16})


def a_llama(folder: Path) -> Path:
    torch.manual_seed(21)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5, eos_token_id=59,
    )  # fmt: skip
    return save(transformers.LlamaForCausalLM(config), folder)


def a_lora(base: Path, folder: Path, auto_class: str = "AutoModelForCausalLM") -> Path:
    """Save an adapter as PEFT does, with weights that change something."""
    torch.manual_seed(22)
    network = getattr(transformers, auto_class).from_pretrained(base)
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    peft.get_peft_model(network, config).save_pretrained(folder)
    return folder


def said(source: Path, prompt: Prompt = PROMPT, **fields: Any) -> list[int]:
    with closing(load(source, **fields)) as runner:
        (output,) = finish(runner, prompt)
    found: list[int] = output.data["token_ids"]
    return found


@torch.inference_mode()
def generated(base: Path, adapter: Path) -> list[int]:
    network = transformers.AutoModelForCausalLM.from_pretrained(base)
    tuned: Any = peft.PeftModel.from_pretrained(network, adapter).eval()
    ids = torch.from_numpy(PROMPT.data["input_ids"])[None]
    options = {"max_new_tokens": 16, "do_sample": False, "pad_token_id": 0}
    whole = tuned.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
    return [token for token in whole[0, ids.shape[1] :].tolist() if token != 59]


def test_an_adapter_changes_the_text_as_in_peft(tmp_path: Path) -> None:
    base = a_llama(tmp_path / "base")
    adapter = a_lora(base, tmp_path / "lora")
    expected = generated(base, adapter)
    assert said(base) != expected, "an adapter that changes nothing tells nothing"
    assert said(base, options={"adapter": str(adapter)}) == expected
    shutil.copytree(adapter, base / "inside")
    assert said(base, options={"adapter": "inside"}) == expected
    shutil.copytree(adapter, base, dirs_exist_ok=True)
    assert said(base) == expected, "beside the base"


@pytest.mark.breadth
def test_an_adapter_changes_a_chat_about_pictures(tmp_path: Path) -> None:
    base = a_llava(tmp_path / "base")
    adapter = a_lora(base, tmp_path / "lora", "AutoModelForImageTextToText")
    prompt = Prompt({"input_ids": tokens(3, 4, 5), "max_new_tokens": 12})
    texts = [said(base, prompt, processor="image-text-to-text", options=o) for o in ({}, {"adapter": str(adapter)})]
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("no folder", r"names .*elsewhere, which lacks the file adapter_config\.json"),
        ("no weights", r"lacks the file adapter_model\.safetensors; pickled ones are not read"),
        ("other kind", "is of the kind 'PROMPT_TUNING'; only LORA"),
        ("not json", r"adapter_config\.json is not a JSON object"),
        ("alone", "is an adapter without the network that it changes"),
    ],
)
def test_an_adapter_that_cannot_be_taken_is_refused_before_loading(tmp_path: Path, change: str, sentence: str) -> None:
    base = a_llama(tmp_path / "base")
    adapter = a_lora(base, tmp_path / "lora")
    config = adapter / "adapter_config.json"
    match change:
        case "no folder":
            adapter = tmp_path / "elsewhere"
        case "no weights":
            (adapter / "adapter_model.safetensors").unlink()
        case "other kind":
            config.write_text(json.dumps({**json.loads(config.read_text()), "peft_type": "PROMPT_TUNING"}))
        case "not json":
            config.write_text("[")
    source = adapter if change == "alone" else base
    options = {} if change == "alone" else {"adapter": str(adapter)}
    with pytest.raises(ModelUnavailable, match=sentence):
        check_transformers(a_model(source, processor="text-generation", options=options))


def test_an_adapter_of_another_network_is_refused(tmp_path: Path) -> None:
    base = a_llama(tmp_path / "base")
    adapter = a_lora(base, tmp_path / "lora")
    torch.manual_seed(1)
    other = save(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=60, n_embd=16, n_layer=1, n_head=2)),
        tmp_path / "other",
    )
    with pytest.raises(ModelUnavailable, match="cannot be loaded"):
        load(other, options={"adapter": str(adapter)})
