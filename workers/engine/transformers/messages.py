"""Vectors of messages: chat networks that read texts and images together, up to their last hidden vectors.

Messages of similar lengths share a batch: whatever is as long as the text is padded at its end and masked. All other
inputs are joined along their first axis, as the library's own processors join them. Types whose vectors change by that
run one by one (`supported_types.json`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed, first_line
from penstock.processors.base import Array, Output, Prompt
from penstock.workers.engine.base import Done, Runner
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory, library, read_config
from penstock.workers.engine.transformers.inputs import IDS, MASK, network_inputs
from penstock.workers.engine.transformers.pooling import Mode, Pooling, pooling_of
from penstock.workers.engine.transformers.supported_types import BATCHED, ways
from penstock.workers.engine.transformers.texts import LENGTH_STEP, checked_tokens, max_tokens_of

#: The kind of all prompts.
KIND = "message"


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message on its way to the device."""

    inputs: Mapping[str, Sent]
    #: Names of the inputs with a value for each token.
    of_tokens: frozenset[str]


@dataclass(frozen=True, slots=True)
class MessageRunner(NetworkRunner):
    """A chat network that embeds: prompts have `kind`, "message", and arrays `inputs.NAME` by the library's names.

    `inputs.input_ids` is int64 (1, T). Outputs have `embedding`, float32 (D,).
    """

    pooling: Pooling
    vocabulary: int
    max_tokens: int | None
    padding: int
    #: False: padding would change the vectors, and the network takes one message at a time.
    batches: bool

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the rounded length and the shapes of further inputs without their first axis."""
        arrays = network_inputs(prompt)
        of_tokens = _of_tokens(arrays)
        shapes = ((name, len(one) if name in of_tokens else one.shape[1:]) for name, one in sorted(arrays.items()))
        return -(-arrays[IDS].shape[-1] // LENGTH_STEP), tuple(shapes)

    def admit(self, prompt: Prompt) -> SentMessage:
        """Return the inputs on their way to the device."""
        arrays = network_inputs(prompt)
        ids = arrays.get(IDS)
        if prompt.data.get("kind") != KIND or ids is None or ids.ndim != 2 or len(ids) != 1:
            raise ProcessorFailed(f"the network takes `kind`, {KIND!r}, and `inputs.{IDS}`, an int64 array (1, tokens)")
        checked_tokens(ids[0], self.vocabulary, self.max_tokens)
        return SentMessage({name: self.device.send(one) for name, one in arrays.items()}, _of_tokens(arrays))

    def step(self, states: Sequence[SentMessage]) -> Sequence[Done]:
        """Run the network once; once per message where padding would change the vectors."""
        with self.device.running():
            groups = [states] if self.batches else [[state] for state in states]
            return [done for group in groups for done in self._run(group)]

    def _run(self, states: Sequence[SentMessage]) -> list[Done]:
        received = [{name: self._received(sent) for name, sent in state.inputs.items()} for state in states]
        masks = [one.setdefault(MASK, torch.ones_like(one[IDS])) for one in received]
        longest, of_tokens = max(mask.shape[1] for mask in masks), states[0].of_tokens | {MASK}

        def joined(name: str) -> Tensor:
            rows = [one[name] for one in received]
            return torch.cat([self._padded(name, row, longest) for row in rows] if name in of_tokens else rows)

        inputs = {name: joined(name) for name in received[0]}
        try:
            hidden = self.network(**inputs).last_hidden_state
        except ValueError as error:
            raise InvalidInput(f"the network rejects this message: {first_line(error)}") from error
        return [Done(Output({"embedding": array})) for array in arrays_of(self.pooling(hidden, inputs[MASK]))]

    def _padded(self, name: str, values: Tensor, length: int) -> Tensor:
        more = (0, length - values.shape[1])
        return torch.nn.functional.pad(values, more, value=self.padding if name == IDS else 0)

    def _received(self, sent: Sent) -> Tensor:
        tensor = self.device.receive(sent)
        return tensor.to(self.network.dtype) if tensor.is_floating_point() else tensor


def load_message_embedder(directory: HubDirectory) -> Runner:
    """Load a chat network that embeds; see `pooling_of` for its options. The default `pooling` is the last token."""
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
    padding = getattr(text, "pad_token_id", None)
    runner = MessageRunner(
        network,
        device,
        pooling=pooling,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=text.vocab_size,
        max_tokens=max_tokens_of(text),
        padding=padding if isinstance(padding, int) and padding >= 0 else 0,
        batches=BATCHED in ways(directory.task, str(directory.config["model_type"])),
    )
    return with_output_cache(runner, model)


def check_messages(directory: HubDirectory) -> None:
    """Raise `ModelUnavailable` for a network or a pooling that cannot embed messages, without reading weights."""
    pooling_of(directory, Mode.LAST)
    config = read_config(directory.model)
    if library().MODEL_MAPPING.get(type(config), None) is None or config.is_encoder_decoder:
        raise ModelUnavailable(f"the network of the model_type {config.model_type!r} has no vectors of a whole message")


def _of_tokens(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of inputs with a value for each token: tokens, masks and kinds of tokens."""
    ids = arrays.get(IDS)
    whole = () if ids is None else ids.shape
    return frozenset(name for name, one in arrays.items() if one.shape == whole and one.dtype.kind in "biu")
