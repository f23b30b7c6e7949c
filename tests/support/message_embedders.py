"""Chat networks that embed texts and images: tiny directories, and what tests showed of each model type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from PIL import Image

from penstock.workers.engine.transformers.supported_types import ALONE, BATCHED
from tests.support import image_text_table
from tests.support.image_text_kinds import KINDS

#: Types that embed nothing, with the reason.
UNFIT: Mapping[str, str] = {
    **dict.fromkeys(("blip", "blip-2", "instructblip"), "its network reads no text without an image"),
    **dict.fromkeys(("florence2", "pix2struct"), "its network answers by a decoder of its own, and embeds nothing"),
    **dict.fromkeys(("chameleon", "idefics"), "its processor has no chat template"),
    "git": "its network puts the vectors of an image before those of the text",
    "lighton_ocr": "transformers does not find the weights of its network without the head",
    "paligemma": "its processor takes no text without an image",
}
#: Types whose vectors change with the padding of other messages.
ONE_BY_ONE: Sequence[str] = ()

_REFUSED = {
    **dict.fromkeys(image_text_table.NEEDS_TORCHVISION, "only torchvision prepares its images"),
    **image_text_table.UNTRIED,
    **UNFIT,
}
EMBEDDERS = sorted(KINDS.keys() - UNFIT.keys())
#: Outcomes by type, as `supported_types.json` has them.
OUTCOMES: Mapping[str, Sequence[str] | str] = {
    **_REFUSED,
    **{kind: [ALONE] if kind in ONE_BY_ONE else [BATCHED, ALONE] for kind in EMBEDDERS},
}


@torch.inference_mode()
def library_vectors(
    folder: Path, processor: Any, items: Sequence[Sequence[str | Image.Image]], prompt: str = "", **arguments: Any
) -> npt.NDArray[np.float32]:
    """Return what the library computes one by one: the last hidden vector of the chat template's last token."""
    network: Any = transformers.AutoModel.from_pretrained(folder, local_files_only=True).eval()
    found = []
    for item in items:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
            for part in item
        ]
        before = [{"role": "system", "content": [{"type": "text", "text": prompt}]}] if prompt else []
        made = processor.apply_chat_template(
            [*before, {"role": "user", "content": content}],
            **{"add_generation_prompt": True, **arguments}, tokenize=True, return_dict=True, return_tensors="pt",
        )  # fmt: skip
        vector = network(**made).last_hidden_state[0, -1].float()
        found.append(vector / vector.norm())
    return torch.stack(found).numpy()
