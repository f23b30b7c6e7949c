"""The image-text-to-text processor: pictures and text in, text out, told while it is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock.models import Limits, Model
from penstock.processors.base import ArtifactSink, Dummy, Media, Output, Prepared, Prompt, Result
from penstock.processors.directory import check_options
from penstock.processors.inputs import INPUTS
from penstock.processors.language.generation import Context, to_continue, told
from penstock.processors.limits import check_items
from penstock.processors.multimodal.pictures import Seen, read_family
from penstock.processors.multimodal.placeholders import expanded, read_script
from penstock.processors.multimodal.request import ImagePart, ImageTextRequest
from penstock.processors.outputs import OUTPUTS
from penstock.processors.vision.prompts import write_dummy

#: The network's inputs: float32 arrays `image_0`, `image_1`, ... in the order of their places, and their layouts.
IMAGE_NAME, LAYOUTS_NAME = "image_{}", "layouts"
#: Steps of a warm-up: enough to have run each kind.
_DUMMY_STEPS = 4


class ImageTextToText:
    """Answers conversations about pictures, each at its own place."""

    request = ImageTextRequest
    outputs = (OUTPUTS.spec("text", "the result's text; its pieces are events while it is made"),)

    def __init__(self, model: Model) -> None:
        self._model = model
        check_options(model, "preprocessor")
        self._family = read_family(model)
        self._script = read_script(model, self._family.image_token_id)

    def pre_process(self, request: ImageTextRequest, media: Media) -> Prepared[Context]:
        """Return the one prompt: all tokens, and the pictures whose places are among them."""
        references = [part.image for turn in request.turns for part in turn.parts if isinstance(part, ImagePart)]
        where = "/input/messages" if request.images is None else "/input/images"
        check_items(len(references), self._model.limits, where, "pictures")
        ids = self._script.write(request.turns)
        pictures = self._see(references, media)
        ids = expanded(ids, self._family.image_token_id, [seen.tokens for seen in pictures])
        text = to_continue(ids, request, self._script.vocabulary.max_tokens)
        arrays = {IMAGE_NAME.format(number): seen.pixels for number, seen in enumerate(pictures)}
        prompt = Prompt({**text.data, **arrays, LAYOUTS_NAME: [seen.layout for seen in pictures]}, text.cost)
        return Prepared(iter([prompt]), 1, prompt.cost, Context(tuple(ids), len(ids), tuple(request.stop)))

    def post_process(self, outputs: Iterator[Output], context: Context, sink: ArtifactSink) -> Result:
        """Return the text, and `{"finish_reason", "usage"}` as data; pictures count by their tokens."""
        return told(outputs, self._script.vocabulary, context, sink)

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a question about a picture of ordinary size."""
        request = {"images": ["media://dummy"], "prompt": "What is this?", "max_new_tokens": _DUMMY_STEPS}
        return Dummy(request, {"media://dummy": write_dummy(folder, limits)})

    def _see(self, references: Sequence[str], media: Media) -> list[Seen]:
        """Prepare the pictures, each once."""
        seen: dict[str, Seen] = {}
        for reference in references:
            if reference not in seen:
                picture = INPUTS.read("picture", media.path(reference), self._model.limits)
                seen[reference] = self._family.see(picture)
        return [seen[reference] for reference in references]
