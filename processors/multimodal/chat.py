"""Image-text-to-text: answers conversations with images and videos, and streams the answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.generation import (
    GENERATED,
    TextGenerationContext,
    generation_prompt,
    generation_result,
)
from penstock.processors.limits import check_items
from penstock.processors.multimodal.encoder import INPUTS_NAME, Encoded, read_chat_encoder
from penstock.processors.multimodal.library import takes_videos
from penstock.processors.multimodal.request import ImagePart, ImageTextRequest, videos_of, with_videos
from penstock.processors.multimodal.videos import read_clip
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.image import read_image
from penstock.processors.vision.prompts import write_dummy

#: New tokens of a warm-up: enough to run every kind of step.
_DUMMY_STEPS = 4


class ImageTextToText:
    """The image-text-to-text processor, by the library's own processor of the model's directory."""

    request = ImageTextRequest
    outputs = (OUTPUTS.spec("text", "the result's text, which is streamed as events while it is made"),)
    io_signatures = (
        IOSignature(prompt=GENERATED.prompt, optional={INPUTS_NAME.format("*"): "array"}, output=GENERATED.output),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        #: Makes the network's inputs of conversations.
        self.encoder = read_chat_encoder(model)
        self.request = with_videos() if takes_videos(self.encoder.processor) else ImageTextRequest

    def pre_process(self, request: ImageTextRequest, media: Media) -> Prepared[TextGenerationContext]:
        """Return one prompt: all tokens of the conversation, with placeholders for images and videos, and the media."""
        given = request.processed
        made = self._encoded(request, media) if given is None else self.encoder.read(media.path(given))
        text = generation_prompt(made.ids, request, self.encoder.vocabulary.max_tokens)
        arrays = {INPUTS_NAME.format(name): array for name, array in made.arrays.items()}
        before = () if self.encoder.apart else tuple(made.ids)
        context = TextGenerationContext(before, len(made.ids), tuple(request.stop))
        return Prepared(iter([Prompt({**text.data, **arrays}, text.cost)]), 1, text.cost, context)

    def post_process(self, outputs: Iterator[Output], context: TextGenerationContext, sink: ArtifactSink) -> Result:
        """Return the text, and `{"finish_reason", "usage"}` as data; `usage` includes the images' tokens."""
        return generation_result(outputs, self.encoder.vocabulary, context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a question about one image of ordinary size."""
        request = {"images": ["media://dummy"], "prompt": "What is this?", "max_new_tokens": _DUMMY_STEPS}
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})

    def _encoded(self, request: ImageTextRequest, media: Media) -> Encoded:
        """Return the inputs of a conversation; media that appear several times are decoded once."""
        shown = [part.image for turn in request.turns for part in turn.parts if isinstance(part, ImagePart)]
        watched, limits = videos_of(request.turns), self._model.limits
        where = "/input/messages" if request.images is None else "/input/images"
        check_items(len(shown) + len(watched), limits, where, "images and videos" if watched else "images")
        clips = {
            one: read_clip(media.path(one), self.encoder.processor.video_processor, limits)
            for one in dict.fromkeys(watched)
        }
        images = {one: read_image(media.source(one), limits) for one in dict.fromkeys(shown)}
        return self.encoder.encode(request.turns, [images[one] for one in shown], [clips[one] for one in watched])
