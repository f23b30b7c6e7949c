"""Vectors of messages: chat networks that read texts and images together, up to their last hidden vectors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from torch import Tensor

from penstock.errors import ModelUnavailable, ProcessorFailed
from penstock.processors.base import Array, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.torch.device import TorchDevice, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config
from penstock.workers.engine.transformers.inputs import IDS, network_inputs
from penstock.workers.engine.transformers.pooling import Mode, pooling_of
from penstock.workers.engine.transformers.supported_types import BATCHED, ways
from penstock.workers.engine.transformers.texts import TextRunner, checked_tokens, max_tokens_of, of_tokens, rounded

#: The kind of all prompts.
KIND = "message"


def load_message_embedder(directory: HubDirectory) -> Runner:
    """Load a chat network that embeds; see `pooling_of` for its options. The default `pooling` is the last token.

    Prompts have `kind`, "message", and arrays `inputs.NAME` by the library's names; `inputs.input_ids` is int64 (1, T).
    Outputs have `embedding`, float32 (D,).
    """
    check_messages(directory)
    model = directory.model
    device, pooling = TorchDevice.of(model), pooling_of(directory, Mode.LAST)
    # The library makes the network without its head alone, but adapters name the weights of the whole.
    whole = directory.adapter is not None
    network = directory.load("AutoModelForImageTextToText" if whole else "AutoModel", dtype=device.dtype).base_model
    text = network.config.get_text_config()
    text.use_cache = False
    device.place(network)
    pooling.layers.requires_grad_(requires_grad=False).to(device.device)
    vocabulary, max_tokens = text.vocab_size, max_tokens_of(text)
    padding = getattr(text, "pad_token_id", None)
    padding = padding if isinstance(padding, int) and padding >= 0 else 0

    def read(prompt: Prompt) -> tuple[Mapping[str, Array], int]:
        arrays = network_inputs(prompt)
        ids = arrays.get(IDS)
        if prompt.data.get("kind") != KIND or ids is None or ids.ndim != 2 or len(ids) != 1:
            raise ProcessorFailed(f"the network takes `kind`, {KIND!r}, and `inputs.{IDS}`, an int64 array (1, tokens)")
        checked_tokens(ids[0], vocabulary, max_tokens)
        return arrays, 0

    def embed(network: Any, inputs: Mapping[str, Tensor], counted: Tensor) -> tuple[str, Tensor]:
        return "embedding", pooling(network(**inputs).last_hidden_state, counted)

    batches = BATCHED in ways(directory.task, str(directory.config["model_type"]))
    runner = TextRunner(
        network, device, model.max_batch, weights_bytes(network), read, _key, embed, padding if batches else None
    )
    return with_output_cache(runner, model)


def _key(prompt: Prompt) -> Hashable:
    """Return the rounded length and the shapes of further inputs without their first axis."""
    arrays = network_inputs(prompt)
    padded = of_tokens(arrays)
    shapes = ((name, len(one) if name in padded else one.shape[1:]) for name, one in sorted(arrays.items()))
    return rounded(arrays[IDS].shape[-1]), tuple(shapes)


def check_messages(directory: HubDirectory) -> None:
    """Raise `ModelUnavailable` for a network or a pooling that cannot embed messages, without reading weights."""
    pooling_of(directory, Mode.LAST)
    config = read_config(directory.model)
    if library().MODEL_MAPPING.get(type(config), None) is None or config.is_encoder_decoder:
        raise ModelUnavailable(f"the network of the model_type {config.model_type!r} has no vectors of a whole message")
