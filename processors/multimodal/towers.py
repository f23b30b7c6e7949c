"""Inputs of networks with a tower for texts and one for images: CLIP, SigLIP and their like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable, first_line
from penstock.models import Model
from penstock.processors.base import Array
from penstock.processors.directory import read_config
from penstock.processors.language.tokens import Vocabulary, max_tokens
from penstock.processors.multimodal.encoder import library_vocabulary, marks_of
from penstock.processors.multimodal.items import Item, Made, Make
from penstock.processors.multimodal.library import as_array, load_processor, text_length
from penstock.processors.multimodal.request import ImagePart, TextImageEmbeddingRequest
from penstock.processors.vision.image import ImageArray

#: Model types whose texts are always padded to full length, because the network reads the last position.
_PADDED = frozenset({"siglip", "siglip2"})


@dataclass(frozen=True, slots=True)
class Towers:
    """The way of networks that embed each text and each image alone."""

    processor: Any
    vocabulary: Vocabulary
    max_tokens: int | None
    pads: bool
    request: type[TextImageEmbeddingRequest] = TextImageEmbeddingRequest

    def length(self, item: Item, index: int) -> int:
        """Return the tokens of a text; 1 for an image."""
        (part,) = item
        if isinstance(part, ImagePart):
            return 1
        text = self.vocabulary.plain(part.text)
        tokens = len(self.processor.tokenizer(text, truncation=False, padding=False)["input_ids"])
        if not tokens:
            raise InvalidInput(f"Text {index} is empty.")
        return tokens

    def maker(self, request: TextImageEmbeddingRequest) -> Make:  # noqa: ARG002
        """Return `_made`: these networks have no prompts."""
        return self._made

    def _made(self, item: Item, images: Sequence[ImageArray], length: int) -> Made:
        (part,) = item
        if isinstance(part, ImagePart):
            return Made("image", self._arrays_of(images[0]))
        most = self.max_tokens
        cut = {} if most is None else {"truncation": True, "max_length": most}
        made = self.processor.tokenizer(
            [self.vocabulary.plain(part.text)], padding="max_length" if self.pads and cut else False,
            return_tensors="pt", **cut,
        )  # fmt: skip
        kept = length if most is None else min(length, most)
        return Made("text", _arrays(made), kept, kept < length)

    def _arrays_of(self, image: ImageArray) -> Mapping[str, Array]:
        try:
            return _arrays(self.processor.image_processor([Image.fromarray(image)], return_tensors="pt"))
        except ValueError as error:
            raise InvalidInput(f"The model's processor rejects an image: {first_line(error)}") from error


def read_towers(model: Model) -> Towers:
    """Return the way of a model with two towers; raise `ModelUnavailable` if its directory has no processor of both."""
    processor = load_processor(model)
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or not hasattr(processor, "image_processor"):
        kind = type(processor).__name__
        raise ModelUnavailable(f"model {model.name!r}: {kind} has not both a tokenizer and an image processor")
    if not getattr(tokenizer, "is_fast", False):
        raise ModelUnavailable(f"model {model.name!r} lacks the file tokenizer.json")
    bounds = (max_tokens(model, model.limits), text_length(model))
    return Towers(
        processor,
        library_vocabulary(model, tokenizer, marks_of(processor)),
        min((bound for bound in bounds if bound is not None), default=None),
        read_config(model).get("model_type") in _PADDED,
    )


def _arrays(made: Mapping[str, Any]) -> dict[str, Array]:
    return {name: as_array(value) for name, value in made.items()}
