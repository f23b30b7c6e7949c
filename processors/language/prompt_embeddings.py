"""Prompt embeddings: vectors instead of a prompt's tokens, from a tensor file whose header is checked first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput
from penstock.processors.tensors.description import described
from penstock.processors.tensors.reading import open_tensors, refuse_nan

#: The network's input instead of token ids: float32 (tokens, hidden size).
EMBEDS_NAME = "inputs_embeds"
#: The dtypes that convert to float32 without rounding.
_DTYPES = ("float32", "float16", "bfloat16")
#: Keys of `config.json` for the length of a token's vector; OPT's differs from the size of its layers.
_WIDTHS = ("word_embed_proj_dim", "hidden_size", "n_embd", "d_model", "emb_dim")


def read_prompt_embeddings(path: Path, *, width: int | None, most: int | None) -> npt.NDArray[np.float32]:
    """Return the embeddings, (tokens, width), of an .npy file or of a .safetensors file with one tensor of any name.

    Raises `InvalidInput` for a wrong dtype, rank or width, for no tokens or more than `most`, and for numbers that are
    not finite; `MediaUnreadable` like `open_tensors`. None = no restriction.
    """
    file = open_tensors(path)
    if len(file.layouts) != 1:
        raise InvalidInput(f"The file has {len(file.layouts)} tensors; it must have one, the prompt's embeddings.")
    [(name, (dtype, shape))] = file.layouts.items()
    if dtype not in _DTYPES or len(shape) != 2 or shape[1] != (width or shape[1]):
        expected = f"{', '.join(_DTYPES)} (tokens, {width or 'hidden size'})"
        raise InvalidInput(f"The network takes embeddings as {expected}, not {described((dtype, shape))}.")
    if not 0 < shape[0] <= (most or shape[0]):
        bound = "at least one" if most is None else f"1 to {most}"
        raise InvalidInput(f"The network takes the embeddings of {bound} tokens, not of {shape[0]}.")
    embeddings = file.load()[name].astype(np.float32, copy=False)
    refuse_nan("prompt_embeds", embeddings)
    return embeddings


def embedding_width(config: Mapping[str, Any]) -> int | None:
    """Return the length of a token's vector from a `config.json`, or None."""
    text = config.get("text_config") or config
    return next((text[name] for name in _WIDTHS if isinstance(text.get(name), int)), None)
