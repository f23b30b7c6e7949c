"""Prompt embeddings: vectors in the place of a prompt's tokens, from a tensor file whose header is looked at first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidInput
from penstock.processors.tensors.description import described
from penstock.processors.tensors.reading import open_tensors, refuse_nan

#: The network's input in the place of token ids: float32 (tokens, hidden size).
EMBEDS_NAME = "inputs_embeds"
#: The dtypes that float32 holds without rounding.
_DTYPES = ("float32", "float16", "bfloat16")
#: What a `config.json` calls the length of a token's vector; OPT's is not that of its layers.
_WIDTHS = ("word_embed_proj_dim", "hidden_size", "n_embd", "d_model", "emb_dim")


def read_embeddings(path: Path, *, width: int | None, most: int | None) -> npt.NDArray[np.float32]:
    """Return (tokens, width) for an .npy file, or a .safetensors file with one tensor of any name.

    Raises `InvalidInput` for another dtype, rank or width, for none or more than `most` of them, and for numbers that
    are not finite; `MediaUnreadable` as `open_tensors` does. None = any.
    """
    file = open_tensors(path)
    if len(file.layouts) != 1:
        raise InvalidInput(f"The file has {len(file.layouts)} tensors: give the prompt's embeddings, and no others.")
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
    """Return how long a token's vector is in the network that a `config.json` describes; None if it does not say."""
    text = config.get("text_config") or config
    return next((text[name] for name in _WIDTHS if isinstance(text.get(name), int)), None)
