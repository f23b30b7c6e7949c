"""A tiny Llama with random weights, a tokenizer of bytes and a LoRA adapter: `python tiny_llama.py FOLDER`.

Runs in an environment that has transformers and torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

#: The tools, if there are some, and the words of all messages, one after the other.
TEMPLATE = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}{{ message.content }}{% endfor %}"
#: Ranks of the adapter, and the sizes of the matrices that it changes.
RANK, HIDDEN, LAYERS = 8, 64, 2
ADAPTER = "pirate"


def write(folder: Path) -> None:
    """Write the model's directory."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: number for number, letter in enumerate(alphabet, start=2)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=HIDDEN, intermediate_size=128, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=2, head_dim=32, max_position_embeddings=16384, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    _write_adapter(folder / ADAPTER)


def _write_adapter(folder: Path) -> None:
    """Write an adapter in the directory format of PEFT, large enough to change greedy texts."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    targets = ["q_proj", "v_proj"]
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 8 * RANK, "target_modules": targets,
        "lora_dropout": 0.0, "bias": "none", "base_model_name_or_path": str(folder.parent),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = {}
    for layer in range(LAYERS):
        for target in targets:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN)
            weights[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK)
    save_file(weights, folder / "adapter_model.safetensors")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
