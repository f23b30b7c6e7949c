"""Image-text-to-text: answers conversations with images, and streams the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options
from penstock.processors.exchange import Exchange
from penstock.processors.inputs import INPUTS
from penstock.processors.language.generation import GENERATED, Context, generation_prompt, generation_result
from penstock.processors.limits import check_items
from penstock.processors.multimodal.conversation import expand_placeholders, read_conversation_encoder
from penstock.processors.multimodal.families import PreparedImage, read_family
from penstock.processors.multimodal.request import ImagePart, ImageTextRequest
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.prompts import write_dummy

#: The network's inputs: float32 arrays `image_0`, `image_1`, ... in the order of the conversation, and their layouts.
IMAGE_NAME, LAYOUTS_NAME = "image_{}", "layouts"
#: New tokens of a warm-up: enough to run every kind of step.
_DUMMY_STEPS = 4


class ImageTextToText:
    """The image-text-to-text processor."""

    request = ImageTextRequest
    outputs = (OUTPUTS.spec("text", "the result's text, which is streamed as events while it is made"),)
    exchanges = (
        Exchange(
            prompt={**GENERATED.prompt, LAYOUTS_NAME: "list"},
            optional={IMAGE_NAME.format("*"): "float32 (...)"},
            output=GENERATED.output,
        ),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        self._family = read_family(model)
        self._conversation = read_conversation_encoder(model, self._family.image_token_id)

    def pre_process(self, request: ImageTextRequest, media: Media) -> Prepared[Context]:
        """Return one prompt: all tokens of the conversation, with placeholders for the images, and the images."""
        references = [part.image for turn in request.turns for part in turn.parts if isinstance(part, ImagePart)]
        where = "/input/messages" if request.images is None else "/input/images"
        check_items(len(references), self._model.limits, where, "images")
        ids = self._conversation.encode(request.turns)
        images = self._prepare(references, media)
        ids = expand_placeholders(ids, self._family.image_token_id, [prepared.tokens for prepared in images])
        text = generation_prompt(ids, request, self._conversation.vocabulary.max_tokens)
        arrays = {IMAGE_NAME.format(number): prepared.pixels for number, prepared in enumerate(images)}
        prompt = Prompt({**text.data, **arrays, LAYOUTS_NAME: [prepared.layout for prepared in images]}, text.cost)
        return Prepared(iter([prompt]), 1, prompt.cost, Context(tuple(ids), len(ids), tuple(request.stop)))

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return the text, and `{"finish_reason", "usage"}` as data; `usage` includes the images' tokens."""
        return generation_result(outputs, self._conversation.vocabulary, context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a question about one image of ordinary size."""
        request = {"images": ["media://dummy"], "prompt": "What is this?", "max_new_tokens": _DUMMY_STEPS}
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})

    def _prepare(self, references: Sequence[str], media: Media) -> list[PreparedImage]:
        """Prepare the images; an image that appears several times is prepared once."""
        prepared: dict[str, PreparedImage] = {}
        for reference in references:
            if reference not in prepared:
                image = INPUTS.read("image", media.path(reference), self._model.limits)
                prepared[reference] = self._family.prepare(image)
        return [prepared[reference] for reference in references]
