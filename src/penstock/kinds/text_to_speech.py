"""Speech from a text, by networks of transformers that make sound from characters, such as VITS and MMS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import penstock
from penstock import Audio, Field

if TYPE_CHECKING:
    from transformers import TextToAudioPipeline


@penstock.model
class TextToSpeech:
    """Read a text aloud."""

    def load(self) -> None:
        """Load the directory of the record's `source`."""
        import torch
        from transformers import pipeline

        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._speak: TextToAudioPipeline = pipeline("text-to-audio", model=str(penstock.weights()), device=device)

    def predict(
        self,
        text: Annotated[str, Field(min_length=1, max_length=5000, description="The text to read aloud.")],
        seed: Annotated[int, Field(ge=0, description="Another seed gives another reading.")] = 0,
    ) -> Audio:
        """Return the speech; the same seed gives the same sound."""
        import numpy as np
        import torch

        torch.manual_seed(seed)
        made = self._speak(text)
        return Audio(np.asarray(made["audio"], np.float32).reshape(-1), int(made["sampling_rate"]))
