"""Networks of the hub for audio: scores of labels."""

from __future__ import annotations

import numpy as np

from penstock.errors import InvalidInput, ProcessorFailed
from penstock.processors.base import Array, Prompt
from penstock.workers.engine.base import Runner
from penstock.workers.engine.transformers.directory import HubDirectory
from penstock.workers.engine.transformers.passes import named, pass_runner


def load_audio_classifier(directory: HubDirectory) -> Runner:
    """Load a network of audio: prompts have `sound`, float32 (samples,), or (frames, bands) where it takes spectra.

    Outputs have `logits`, float32 (classes,). Audio of one length shares a batch: padding would change the scores.
    """
    # The embedding that masks samples serves training alone.
    network = directory.load("AutoModelForAudioClassification", unused=lambda name: name.endswith("masked_spec_embed"))
    config = network.config
    shape = (config.max_length, config.num_mel_bins) if hasattr(config, "num_mel_bins") else None

    def read(prompt: Prompt) -> tuple[dict[str, Array], None]:
        sound = prompt.data.get("sound")
        if not isinstance(sound, np.ndarray) or sound.dtype != np.float32 or sound.ndim not in (1, 2):
            raise ProcessorFailed("the network takes `sound`, a float32 array (samples,) or (frames, bands)")
        if sound.ndim != (2 if shape else 1) or (shape and sound.shape != shape) or not sound.size:
            wanted = "samples" if shape is None else "{} frames of {} bands".format(*shape)
            raise InvalidInput(f"the network takes {wanted}, the prompt has {sound.shape}")
        return {"input_values": sound[None]}, None

    return pass_runner(
        directory,
        network,
        read,
        lambda network, inputs, asked: named(logits=network(**inputs).logits.float()),  # noqa: ARG005
    )
