"""Hub directories with quantised weights, made of others on a CPU by the packages that people quantise with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization import apply_quantization_config as apply
from safetensors.torch import load_file, save_file

from tests.support.hub import save

TEXT, CHAT, PICTURE = "AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForImageClassification"
#: The side of the blocks of `in_fp8`.
BLOCK = 16


def a_llama(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Save a Llama with layers of the sizes that the kernels for four bits take."""
    torch.manual_seed(31)
    config = transformers.LlamaConfig(
        vocab_size=60, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        initializer_range=0.3, eos_token_id=59, max_position_embeddings=256, dtype=dtype,
    )  # fmt: skip
    return save(transformers.LlamaForCausalLM(config).to(dtype), folder)


def in_int8(source: Path, folder: Path, auto_class: str = TEXT) -> Path:
    """Quantise to eight bits by bitsandbytes."""
    return _by_bitsandbytes(source, folder, auto_class, transformers.BitsAndBytesConfig(load_in_8bit=True))


def in_nf4(source: Path, folder: Path, auto_class: str = TEXT) -> Path:
    """Quantise to four bits by bitsandbytes, the scales too."""
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
    )
    return _by_bitsandbytes(source, folder, auto_class, config)


def in_packed_int4(source: Path, folder: Path, auto_class: str = TEXT) -> Path:
    """Quantise to four bits in the format of compressed-tensors, as llm-compressor does."""
    network: Any = getattr(transformers, auto_class).from_pretrained(source).eval()
    weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="channel")
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    apply(network, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"]))
    for module in network.modules():
        if hasattr(module, "weight_scale"):
            module.weight_scale.data.copy_(module.weight.abs().amax(dim=1, keepdim=True) / 7)
    compressor = ModelCompressor.from_pretrained_model(network, quantization_format="pack-quantized")
    compressor.compress_model(network)
    network.save_pretrained(folder)
    compressor.update_config(folder)
    return folder


def in_fp8(source: Path, folder: Path) -> Path:
    """Write a text generator's layers as FP8 in blocks with a scale each: the library itself does so on a GPU only."""
    network: Any = transformers.AutoModelForCausalLM.from_pretrained(source)
    network.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        rows, columns = weights[name].shape
        blocks = weights[name].reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scales = blocks.abs().amax(dim=(1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        weights[name] = (blocks / scales).reshape(rows, columns).to(torch.float8_e4m3fn)
        weights[f"{name}_scale_inv"] = scales[:, 0, :, 0].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    told = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK], "activation_scheme": "dynamic"}
    return declared(folder, told)


def declared(folder: Path, quantisation: Any) -> Path:
    """Write into a directory's `config.json` how its weights are said to be quantised."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantisation}))
    return folder


def _by_bitsandbytes(source: Path, folder: Path, auto_class: str, config: Any) -> Path:
    network = getattr(transformers, auto_class).from_pretrained(source, quantization_config=config)
    network.save_pretrained(folder)
    for file in source.iterdir():  # tokenizers, templates, what is done to pictures
        if not (folder / file.name).exists():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder
