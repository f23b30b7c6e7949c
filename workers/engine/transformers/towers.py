"""Vectors of texts and images in one space, by networks with a tower for each: CLIP, SigLIP and their like.

The inputs are those of the library's own processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Array, Prompt, Value
from penstock.processors.multimodal.items import TOWERS
from penstock.workers.engine.base import Runner
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.inputs import IDS, network_inputs
from penstock.workers.engine.transformers.messages import load_message_embedder
from penstock.workers.engine.transformers.passes import named, pass_runner
from penstock.workers.engine.transformers.similarity import pooled

#: Kinds of prompts -> the network's method.
_METHODS = {"text": "get_text_features", "image": "get_image_features"}


def load_text_image_embedder(directory: HubDirectory) -> Runner:
    """Load a network with two towers, or a chat network that embeds. Option: `normalize` (true).

    Prompts of two towers have `kind`, `text` or `image`, and arrays `inputs.NAME` with the library's names and a batch
    axis of 1. Outputs have `embedding`, float32 (D,), of length 1 if `normalize` is set, else as `get_text_features`
    and `get_image_features` return it.
    """
    if directory.config.get("model_type") not in TOWERS:
        return load_message_embedder(directory)
    network = directory.load("AutoModel")
    if not all(hasattr(network, method) for method in _METHODS.values()):
        raise ModelUnavailable(f"{type(network).__name__} is not the whole model: it embeds images or texts alone")
    vocabulary, normalize = network.config.text_config.vocab_size, directory.model.options.get("normalize", True)

    def read(prompt: Prompt) -> tuple[Mapping[str, Array], str]:
        kind, arrays = prompt.data.get("kind"), network_inputs(prompt)
        if kind not in _METHODS or not arrays:
            raise ProcessorFailed("the network takes `kind` (text or image) and arrays `inputs.NAME`")
        ids = arrays.get(IDS)
        if ids is not None and not (ids.size and int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
            raise InvalidInput(f"the network knows the tokens 0 to {vocabulary - 1}; the prompt has others")
        return arrays, str(kind)

    def answer(network: Any, inputs: Mapping[str, Tensor], kinds: Sequence[str]) -> Sequence[Mapping[str, Value]]:
        vectors = pooled(getattr(network, _METHODS[kinds[0]])(**inputs))
        return named(embedding=torch.nn.functional.normalize(vectors, dim=1) if normalize is True else vectors)

    runner = pass_runner(directory, network, read, answer, shared=("kind",))
    return with_output_cache(runner, directory.model)
