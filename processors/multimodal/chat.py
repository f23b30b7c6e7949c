"""Image-text-to-text: answers conversations with images and videos, and streams the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import InvalidInput, Issue
from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options, read_config
from penstock.processors.io_signature import IOSignature
from penstock.processors.language.generation import (
    GENERATED,
    TextGenerationContext,
    generation_prompt,
    generation_result,
)
from penstock.processors.language.tokens import Vocabulary
from penstock.processors.limits import check_items
from penstock.processors.multimodal.conversation import (
    ConversationEncoder,
    expand_placeholders,
    read_conversation_encoder,
)
from penstock.processors.multimodal.families import FAMILIES, Family, PreparedImage, read_family
from penstock.processors.multimodal.general import INPUTS_NAME, Encoded, GeneralEncoder, read_general_encoder
from penstock.processors.multimodal.library import takes_videos
from penstock.processors.multimodal.request import ImagePart, ImageTextRequest, videos_of, with_videos
from penstock.processors.multimodal.videos import Clip, read_clip
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.image import ImageArray, read_image
from penstock.processors.vision.prompts import write_dummy

#: The network's inputs: float32 arrays `image_0`, `image_1`, ... in the order of the conversation, and their layouts.
IMAGE_NAME, LAYOUTS_NAME = "image_{}", "layouts"
#: New tokens of a warm-up: enough to run every kind of step.
_DUMMY_STEPS = 4

#: Returns the image of a reference.
Read = Callable[[str], ImageArray]
#: Returns the frames of a reference that a video processor of the library chooses.
Watch = Callable[[str, Any], Clip]


class Chats(Protocol):
    """A way to make prompts of chats."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokenizer."""
        ...

    @property
    def takes_videos(self) -> bool:
        """True if messages may have videos."""
        ...

    def prompt(
        self, request: ImageTextRequest, references: Sequence[str], read: Read, watch: Watch
    ) -> tuple[Prompt, TextGenerationContext]:
        """Return the prompt and the context of a request; `references` are those of its images.

        `read` returns the image of a reference, `watch` the frames of a video.
        """
        ...

    def processed(self, request: ImageTextRequest, path: Path) -> tuple[Prompt, TextGenerationContext]:
        """Return the prompt and the context of processed inputs; raise `InvalidInput` if they do not fit."""
        ...


class ImageTextToText:
    """The image-text-to-text processor."""

    request = ImageTextRequest
    outputs = (OUTPUTS.spec("text", "the result's text, which is streamed as events while it is made"),)
    io_signatures = (
        IOSignature(
            prompt={**GENERATED.prompt, LAYOUTS_NAME: "list"},
            optional={IMAGE_NAME.format("*"): "float32 (...)"},
            output=GENERATED.output,
        ),
        IOSignature(prompt=GENERATED.prompt, optional={INPUTS_NAME.format("*"): "array"}, output=GENERATED.output),
    )

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        self._chats = _chats(model)
        self.request = with_videos() if self._chats.takes_videos else ImageTextRequest

    def pre_process(self, request: ImageTextRequest, media: Media) -> Prepared[TextGenerationContext]:
        """Return one prompt: all tokens of the conversation, with placeholders for images and videos, and the media."""
        if request.processed is not None:
            prompt, context = self._chats.processed(request, media.path(request.processed))
            return Prepared(iter([prompt]), 1, prompt.cost, context)
        references = [part.image for turn in request.turns for part in turn.parts if isinstance(part, ImagePart)]
        where = "/input/messages" if request.images is None else "/input/images"
        videos = len(videos_of(request.turns))
        what = "images and videos" if videos else "images"
        check_items(len(references) + videos, self._model.limits, where, what)

        def read(reference: str) -> ImageArray:
            return read_image(media.source(reference), self._model.limits)

        def watch(reference: str, processor: Any) -> Clip:
            return read_clip(media.path(reference), processor, self._model.limits)

        prompt, context = self._chats.prompt(request, references, read, watch)
        return Prepared(iter([prompt]), 1, prompt.cost, context)

    def post_process(self, outputs: Iterator[Output], context: TextGenerationContext, sink: ArtifactSink) -> Result:
        """Return the text, and `{"finish_reason", "usage"}` as data; `usage` includes the images' tokens."""
        return generation_result(outputs, self._chats.vocabulary, context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a question about one image of ordinary size."""
        request = {"images": ["media://dummy"], "prompt": "What is this?", "max_new_tokens": _DUMMY_STEPS}
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})


@dataclass(frozen=True, slots=True)
class FamilyChats:
    """Chats of a family: prepared without the library, with cached encodings of images."""

    family: Family
    conversation: ConversationEncoder
    takes_videos = False

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokenizer."""
        return self.conversation.vocabulary

    def prompt(
        self,
        request: ImageTextRequest,
        references: Sequence[str],
        read: Read,
        watch: Watch,  # noqa: ARG002
    ) -> tuple[Prompt, TextGenerationContext]:
        """Return the prompt and the context of a request; an image that appears several times is prepared once."""
        ids = self.conversation.encode(request.turns)
        prepared: dict[str, PreparedImage] = {}
        for reference in references:
            if reference not in prepared:
                prepared[reference] = self.family.prepare(read(reference))
        images = [prepared[reference] for reference in references]
        ids = expand_placeholders(ids, self.family.image_token_id, [image.tokens for image in images])
        text = generation_prompt(ids, request, self.vocabulary.max_tokens)
        arrays = {IMAGE_NAME.format(number): image.pixels for number, image in enumerate(images)}
        prompt = Prompt({**text.data, **arrays, LAYOUTS_NAME: [image.layout for image in images]}, text.cost)
        return prompt, TextGenerationContext(tuple(ids), len(ids), tuple(request.stop))

    def processed(self, request: ImageTextRequest, path: Path) -> tuple[Prompt, TextGenerationContext]:  # noqa: ARG002
        """Refuse processed inputs: the family prepares images itself."""
        detail = "This model takes images; it takes no inputs that another processor made."
        raise InvalidInput(detail, errors=[Issue("/input/processed", detail)])


@dataclass(frozen=True, slots=True)
class GeneralChats:
    """Chats of every other model, by the library's own processor."""

    encoder: GeneralEncoder

    @property
    def vocabulary(self) -> Vocabulary:
        """The model's tokenizer."""
        return self.encoder.vocabulary

    @property
    def takes_videos(self) -> bool:
        """True if the library's processor can prepare videos here."""
        return takes_videos(self.encoder.processor)

    def prompt(
        self, request: ImageTextRequest, references: Sequence[str], read: Read, watch: Watch
    ) -> tuple[Prompt, TextGenerationContext]:
        """Return the prompt and the context of a request."""
        clips = self._clips(request, watch)
        images = {reference: read(reference) for reference in dict.fromkeys(references)}
        return self._prompt(
            request, self.encoder.encode(request.turns, [images[reference] for reference in references], clips)
        )

    def _clips(self, request: ImageTextRequest, watch: Watch) -> list[Clip]:
        references = videos_of(request.turns)
        clips = {one: watch(one, self.encoder.processor.video_processor) for one in dict.fromkeys(references)}
        return [clips[reference] for reference in references]

    def processed(self, request: ImageTextRequest, path: Path) -> tuple[Prompt, TextGenerationContext]:
        """Return the prompt and the context of processed inputs."""
        return self._prompt(request, self.encoder.read(path))

    def _prompt(self, request: ImageTextRequest, made: Encoded) -> tuple[Prompt, TextGenerationContext]:
        text = generation_prompt(made.ids, request, self.vocabulary.max_tokens)
        arrays = {INPUTS_NAME.format(name): array for name, array in made.arrays.items()}
        before = () if self.encoder.apart else tuple(made.ids)
        return Prompt({**text.data, **arrays}, text.cost), TextGenerationContext(
            before, len(made.ids), tuple(request.stop)
        )


def _chats(model: Model) -> Chats:
    """Return the way of a model's chats: that of its family, or the general one."""
    if read_config(model).get("model_type") not in FAMILIES:
        return GeneralChats(read_general_encoder(model))
    family = read_family(model)
    return FamilyChats(family, read_conversation_encoder(model, family.image_token_id))
