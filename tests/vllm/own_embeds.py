"""vLLM's own greedy answers about embeddings of images: `own_embeds.py ANSWERS < {"engine", "tokens", "prompts"}`.

Each prompt is a text and the names of .safetensors files, one for each image in it. The file ANSWERS gets the answers
as JSON. vLLM is asked by `LLM.generate` with tensors in `multi_modal_data`, as it documents.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answers(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return vLLM's answers to the prompts, in order."""
    import torch
    from safetensors.torch import load_file
    from vllm import LLM, SamplingParams

    llm = LLM(**asked["engine"])
    prompts = []
    for text, names in asked["prompts"]:
        files = [load_file(name) for name in names]
        image = {name: torch.cat([file[name] for file in files]) for name in ("image_embeds", "image_grid_thw")}
        prompts.append({"prompt": text, "multi_modal_data": {"image": image}})
    greedy = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True)
    return [
        {"tokens": list(answer.outputs[0].token_ids), "prompt_tokens": len(answer.prompt_token_ids)}
        for answer in llm.generate(prompts, greedy, use_tqdm=False)
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answers(json.load(sys.stdin))))
