"""vLLM's own greedy answers: `python own_texts.py ANSWERS < {"engine", "adapter", "tokens", "chats"}`.

The file ANSWERS gets them as JSON, each a text with its token ids. vLLM is asked by `LLM.chat`, as it documents.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answers(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return vLLM's answers to the chats, in order, without the adapter and then with it."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(**asked["engine"], **({"enable_lora": True} if asked["adapter"] else {}))
    greedy = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True)
    found = []
    for lora in (None, LoRARequest("adapter", 1, asked["adapter"])) if asked["adapter"] else (None,):
        for answer in llm.chat(asked["chats"], greedy, use_tqdm=False, lora_request=lora):
            said = answer.outputs[0]
            found.append(
                {"text": said.text, "tokens": list(said.token_ids), "prompt_tokens": len(answer.prompt_token_ids)}
            )
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answers(json.load(sys.stdin))))
