"""Names, places and other marked words in texts, by any network of transformers for token classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import penstock
from penstock import Field

if TYPE_CHECKING:
    from transformers import TokenClassificationPipeline

#: Tokens that neighbouring parts of a long text share, at most.
_STRIDE = 128


@dataclass
class Entity:
    """A marked part of a text."""

    #: The label, without the prefixes `B-` and `I-`.
    label: str
    #: From 0 to 1.
    score: float
    text: str
    #: Characters of the text before the part, and before its end.
    start: int
    end: int


@penstock.model(max_batch=16)
class TokenClassification:
    """Find names in texts.

    The answer has a list of entities for each text: label, score, and place in characters. A text that is longer than
    the network's input is read in parts that overlap.
    """

    def load(self) -> None:
        """Load the directory of the record's `source`."""
        import torch
        from transformers import pipeline

        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._find: TokenClassificationPipeline = pipeline(
            "token-classification", model=str(penstock.weights()), device=device
        )
        tokenizer: Any = self._find.tokenizer
        room = min(tokenizer.model_max_length, getattr(self._find.model.config, "max_position_embeddings", 10**9))
        tokenizer.model_max_length = room
        self._stride = min(_STRIDE, room // 4) if room < 10**9 else None

    def predict(
        self,
        texts: list[Annotated[str, Field(min_length=1)]],
        aggregation: Annotated[
            Literal["simple", "first", "average", "max"], Field(description="How tokens become one entity.")
        ] = "simple",
    ) -> list[list[Entity]]:
        """Return the entities of each text; the network reads one text after the other."""
        asked: dict[str, Any] = {"aggregation_strategy": aggregation, "stride": self._stride}
        return [[_entity(found, text) for found in self._find(text, **asked)] for text in texts]


def _entity(found: Any, text: str) -> Entity:
    start, end = int(found["start"]), int(found["end"])
    return Entity(found["entity_group"], float(found["score"]), text[start:end], start, end)
