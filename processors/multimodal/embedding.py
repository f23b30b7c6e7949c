"""Text and image embedding: turns texts and images into vectors of one space, by the library's own processor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options, read_config
from penstock.processors.embedding import OUTPUT_NAME, SPECS, embedding_result
from penstock.processors.io_signature import IOSignature
from penstock.processors.limits import check_items, dummy_items
from penstock.processors.multimodal.encoder import INPUTS_NAME
from penstock.processors.multimodal.items import TOWERS, Item, Make
from penstock.processors.multimodal.messages import read_messages
from penstock.processors.multimodal.request import ImagePart, TextImageEmbeddingRequest
from penstock.processors.multimodal.towers import read_towers
from penstock.processors.vision.image import measure, read_image
from penstock.processors.vision.prompts import write_dummy
from penstock.views import View

#: The kind of a prompt: `text` or `image` for networks with a tower for each, else `message`.
KIND_NAME = "kind"
#: Length of the warm-up's texts for models without a lower maximum.
_DUMMY_TOKENS = 512


@dataclass(slots=True)
class TextImageEmbeddingContext:
    """Request state for `post_process`."""

    outputs: tuple[str, ...]
    #: Numbers of items by the names of the request's fields.
    counts: Mapping[str, int]
    #: Tokens of the prompts that were made so far, and the indices of those that were cut.
    tokens: int = 0
    truncated: list[int] = field(default_factory=list)


class Way(Protocol):
    """A way to make prompts of texts and images."""

    @property
    def request(self) -> type[TextImageEmbeddingRequest]:
        """The class of the model's requests."""
        ...

    @property
    def max_tokens(self) -> int | None:
        """The longest text in tokens; None without a maximum."""
        ...

    def length(self, item: Item, index: int) -> int:
        """Return the tokens of an item's texts and the number of its images; raise `InvalidInput` for an empty one."""
        ...

    def maker(self, request: Any) -> Make:
        """Return the function that makes inputs for a request; raise `InvalidInput` for an unknown prompt."""
        ...


class TextImageEmbedding:
    """The text and image embedding processor. Texts beyond the maximum length are cut; the result names them."""

    request = TextImageEmbeddingRequest
    outputs = SPECS
    views = (View("vectors", "/embeddings"),)
    io_signatures = (
        IOSignature(
            prompt={KIND_NAME: "text"},
            optional={INPUTS_NAME.format("*"): "array"},
            output={OUTPUT_NAME: "array (dimensions)"},
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model)
        self._way: Way = read_towers(model) if read_config(model).get("model_type") in TOWERS else read_messages(model)
        self.request = self._way.request

    def pre_process(self, request: TextImageEmbeddingRequest, media: Media) -> Prepared[TextImageEmbeddingContext]:
        """Return one prompt per text, then one per image, then one per item of both."""
        items = [item for group in request.groups.values() for item in group]
        check_items(len(items), self._model.limits, "/input", "items")
        make = self._way.maker(request)
        lengths = [self._way.length(item, index) for index, item in enumerate(items)]
        costs = [min(length, self._way.max_tokens or length) for length in lengths]
        shown = (part.image for item in items for part in item if isinstance(part, ImagePart))
        for source in map(media.source, dict.fromkeys(shown)):
            measure(source, self._model.limits)
        context = TextImageEmbeddingContext(
            request.outputs, {name: len(group) for name, group in request.groups.items()}
        )

        def prompts() -> Iterator[Prompt]:
            for index, (item, length, cost) in enumerate(zip(items, lengths, costs, strict=True)):
                shown = [media.source(part.image) for part in item if isinstance(part, ImagePart)]
                made = make(item, [read_image(source, self._model.limits) for source in shown], length)
                context.tokens += made.tokens
                context.truncated += [index] * made.cut
                arrays = {INPUTS_NAME.format(name): array for name, array in made.arrays.items()}
                yield Prompt({KIND_NAME: made.kind, **arrays}, cost=cost)

        return Prepared(prompts(), len(items), sum(costs), context, unit="texts and images")

    def post_process(self, outputs: Iterator[Output], context: TextImageEmbeddingContext, sink: ArtifactSink) -> Result:
        """Return `{"count", "texts", "images", "dimensions", "embeddings", "truncated", "usage"}`, perhaps `"items"`.

        `embeddings` has the vectors of the texts, then those of the images, then those of the items; `truncated` has
        indices of embeddings.
        """
        data = embedding_result(outputs, context.outputs, sink)
        counts = {**context.counts, "truncated": context.truncated}
        return Result(data={**data, **counts, "usage": {"prompt_tokens": context.tokens}})

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return texts and copies of one image, half a batch of each."""
        count = max(1, dummy_items(self._model, limits) // 2)
        words = "a " * min(self._way.max_tokens or _DUMMY_TOKENS, _DUMMY_TOKENS)
        request: dict[str, Any] = {"texts": [words] * count}
        if limits.max_items != 1:
            request["images"] = ["media://dummy"] * count
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})
