"""Vectors of texts and images in one space, by networks with a tower for each: CLIP, SigLIP and their like.

The inputs are those of the library's own processor. Equal shapes share a batch, so nothing is padded here.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch

from penstock.errors import InvalidInput, ModelUnavailable, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.processors.multimodal.items import TOWERS
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.output_cache import with_output_cache
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.inputs import network_inputs
from penstock.workers.engine.transformers.messages import load_message_embedder
from penstock.workers.engine.transformers.similarity import pooled

#: Kinds of prompts -> the network's method.
_METHODS = {"text": "get_text_features", "image": "get_image_features"}


@dataclass(frozen=True, slots=True)
class SentItem:
    """A text or an image on its way to the device."""

    kind: str
    inputs: Mapping[str, Sent]


@dataclass(frozen=True, slots=True)
class TowersRunner(NetworkRunner):
    """A network that embeds texts and images: prompts have `kind`, `text` or `image`, and arrays `inputs.NAME`.

    The arrays have the library's names and a batch axis of 1. Outputs have `embedding`, float32 (D,), of length 1 if
    `normalize` is set, else as `get_text_features` and `get_image_features` return it.
    """

    normalize: bool
    vocabulary: int

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the kind and the shapes of all inputs."""
        return str(prompt.data.get("kind")), shapes_of(prompt)

    def admit(self, prompt: Prompt) -> SentItem:
        """Return the inputs on their way to the device."""
        kind, arrays = prompt.data.get("kind"), network_inputs(prompt)
        if kind not in _METHODS or not arrays:
            raise ProcessorFailed("the network takes `kind` (text or image) and arrays `inputs.NAME`")
        ids = arrays.get("input_ids")
        if ids is not None and not (ids.size and int(ids.min()) >= 0 and int(ids.max()) < self.vocabulary):
            raise InvalidInput(f"the network knows the tokens 0 to {self.vocabulary - 1}; the prompt has others")
        return SentItem(str(kind), {name: self.device.send(each) for name, each in arrays.items()})

    def step(self, states: Sequence[SentItem]) -> Sequence[Done]:
        """Run one of the two towers once."""
        with self.device.running():
            names = states[0].inputs
            inputs = {name: torch.cat([self.device.receive(state.inputs[name]) for state in states]) for name in names}
            vectors = pooled(getattr(self.network, _METHODS[states[0].kind])(**inputs))
            if self.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
            return [Done(Output({"embedding": array})) for array in arrays_of(vectors)]


def load_text_image_embedder(directory: HubDirectory) -> Runner:
    """Load a network with two towers, or a chat network that embeds. Option: `normalize` (true)."""
    if directory.config.get("model_type") not in TOWERS:
        return load_message_embedder(directory)
    model = directory.model
    device = TorchDevice.of(model)
    network = directory.load("AutoModel")
    if not all(hasattr(network, method) for method in _METHODS.values()):
        raise ModelUnavailable(f"{type(network).__name__} is not the whole model: it embeds images or texts alone")
    device.place(network)
    runner = TowersRunner(
        network,
        device,
        normalize=model.options.get("normalize", True) is True,
        max_batch=model.max_batch,
        memory_bytes=weights_bytes(network),
        vocabulary=network.config.text_config.vocab_size,
    )
    return with_output_cache(runner, model)
