"""Networks of the hub for audio: scores of labels."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Done, Runner, shapes_of
from penstock.workers.engine.torch.device import NetworkRunner, Sent, TorchDevice, arrays_of, weights_bytes
from penstock.workers.engine.transformers.directory import HubDirectory


@dataclass(frozen=True)
class AudioRunner(NetworkRunner):
    """A network of audio: prompts have `sound`, float32 (samples,), or (frames, bands) if `shape` is set.

    Outputs have `logits`, float32 (classes,).
    """

    #: The only (frames, bands) that the network takes; None: the network takes samples.
    shape: tuple[int, int] | None

    def bucket(self, prompt: Prompt) -> Hashable:
        """Return the audio's shape: audio of one length shares a batch. Padding would change the scores."""
        return shapes_of(prompt)

    def admit(self, prompt: Prompt) -> Sent:
        """Return the audio on its way to the device."""
        sound = prompt.data.get("sound")
        if not isinstance(sound, np.ndarray) or sound.dtype != np.float32 or sound.ndim not in (1, 2):
            raise ProcessorFailed("the network takes `sound`, a float32 array (samples,) or (frames, bands)")
        if sound.ndim != (2 if self.shape else 1) or (self.shape and sound.shape != self.shape) or not sound.size:
            wanted = "samples" if self.shape is None else "{} frames of {} bands".format(*self.shape)
            raise InvalidInput(f"the network takes {wanted}, the prompt has {sound.shape}")
        return self.device.send(sound[None])

    def step(self, states: Sequence[Sent]) -> Sequence[Done]:
        """Run the network once."""
        with self.device.running():
            batch = torch.cat([self.device.receive(state) for state in states])
            logits = self.network(input_values=batch).logits.float()
            return [Done(Output({"logits": array})) for array in arrays_of(logits)]


def load_audio_classifier(directory: HubDirectory) -> Runner:
    """Load a network that returns `logits`."""
    model = directory.model
    device = TorchDevice.of(model)
    # The embedding that masks samples serves training alone.
    network = directory.load("AutoModelForAudioClassification", unused=lambda name: name.endswith("masked_spec_embed"))
    device.place(network)
    config = network.config
    shape = (config.max_length, config.num_mel_bins) if hasattr(config, "num_mel_bins") else None
    return AudioRunner(network, device, model.max_batch, weights_bytes(network), shape)
