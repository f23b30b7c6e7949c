"""Text and image embedding: turns texts and images into vectors of one space, by the library's own processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image

from penstock.errors import InvalidInput, ModelUnavailable, first_line
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options, read_config
from penstock.processors.embedding import OUTPUT_NAME, SPECS, embedding_result
from penstock.processors.exchange import Exchange
from penstock.processors.inputs import INPUTS
from penstock.processors.language.tokens import max_tokens
from penstock.processors.limits import check_items, dummy_items
from penstock.processors.multimodal.general import INPUTS_NAME, library_vocabulary, marks_of
from penstock.processors.multimodal.library import as_array, load_processor, text_length
from penstock.processors.multimodal.request import TextImageEmbeddingRequest
from penstock.processors.vision.image import measure
from penstock.processors.vision.prompts import write_dummy

#: The kind of a prompt: `text` or `image`.
KIND_NAME = "kind"
#: Model types whose texts are always padded to full length, because the network reads the last position.
_PADDED = frozenset({"siglip", "siglip2"})


@dataclass(frozen=True, slots=True)
class Context:
    """Request state for `post_process`."""

    outputs: tuple[str, ...]
    texts: int
    images: int
    tokens: int
    truncated: list[int] = field(default_factory=list)


class TextImageEmbedding:
    """The text and image embedding processor. Texts beyond the maximum length are cut; the result names them."""

    request = TextImageEmbeddingRequest
    outputs = SPECS
    exchanges = (
        Exchange(
            prompt={KIND_NAME: "text"},
            optional={INPUTS_NAME.format("*"): "array"},
            output={OUTPUT_NAME: "array (dimensions)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._processor = load_processor(model)
        tokenizer = getattr(self._processor, "tokenizer", None)
        if tokenizer is None or not hasattr(self._processor, "image_processor"):
            kind = type(self._processor).__name__
            raise ModelUnavailable(f"model {model.name!r}: {kind} has not both a tokenizer and an image processor")
        if not getattr(tokenizer, "is_fast", False):
            raise ModelUnavailable(f"model {model.name!r} lacks the file tokenizer.json")
        self._vocabulary = library_vocabulary(model, tokenizer, marks_of(self._processor))
        bounds = (max_tokens(model, model.limits), text_length(model))
        self._max_tokens = min((bound for bound in bounds if bound is not None), default=None)
        self._pads = read_config(model).get("model_type") in _PADDED

    def pre_process(self, request: TextImageEmbeddingRequest, media: Media) -> Prepared[Context]:
        """Return one prompt per text, then one per image."""
        check_items(len(request.listed_texts) + len(request.listed_images), self._model.limits, "/input", "items")
        texts = [self._text(text, index) for index, text in enumerate(request.listed_texts)]
        paths = [media.path(image) for image in request.listed_images]
        for path in paths:
            measure(path, self._model.limits)
        tokens = sum(prompt.cost for prompt, _ in texts)
        truncated = [index for index, (_, cut) in enumerate(texts) if cut]
        context = Context(request.outputs, len(texts), len(paths), tokens, truncated)
        prompts = chain((prompt for prompt, _ in texts), map(self._image, paths))
        return Prepared(prompts, len(texts) + len(paths), tokens + len(paths), context, unit="texts and images")

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return `{"count", "texts", "images", "dimensions", "embeddings", "truncated", "usage"}`.

        `embeddings` has the vectors of the texts, then those of the images; `truncated` has indices of texts.
        """
        data = embedding_result(outputs, context.outputs, sink)
        counts = {"texts": context.texts, "images": context.images, "truncated": context.truncated}
        return Result(data={**data, **counts, "usage": {"prompt_tokens": context.tokens}})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return texts and copies of one image, half a batch of each."""
        count = max(1, dummy_items(self._model, limits) // 2)
        words = "a " * (self._max_tokens or 64)
        request: dict[str, Any] = {"texts": [words] * count}
        if limits.max_items != 1:
            request["images"] = ["media://dummy"] * count
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})

    def _text(self, text: str, index: int) -> tuple[Prompt, bool]:
        """Return a text's prompt, and True if it was cut."""
        text, most = self._vocabulary.plain(text), self._max_tokens
        tokens = len(self._processor.tokenizer(text, truncation=False, padding=False)["input_ids"])
        if not tokens:
            raise InvalidInput(f"Text {index} is empty.")
        cut = {} if most is None else {"truncation": True, "max_length": most}
        made = self._processor.tokenizer(
            [text], padding="max_length" if self._pads and cut else False, return_tensors="pt", **cut
        )
        kept = tokens if most is None else min(tokens, most)
        return _prompt("text", made, kept), kept < tokens

    def _image(self, path: Path) -> Prompt:
        image = Image.fromarray(INPUTS.read("image", path, self._model.limits))
        try:
            made = self._processor.image_processor([image], return_tensors="pt")
        except ValueError as error:
            raise InvalidInput(f"The model's processor rejects an image: {first_line(error)}") from error
        return _prompt("image", made, 1)


def _prompt(kind: str, made: Mapping[str, Any], cost: int) -> Prompt:
    arrays = {INPUTS_NAME.format(name): as_array(value) for name, value in made.items()}
    return Prompt({KIND_NAME: kind, **arrays}, cost=cost)
