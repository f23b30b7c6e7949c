"""Inputs of chat networks that embed: texts and images are a user's message, which the model's chat template renders.

The form is that of sentence-transformers 6.2: `sentence_bert_config.json` has the arguments of the template, and
`config_sentence_transformers.json` the prompts, each of which is a system message. A directory without these files gets
its chat template with the beginning of an answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.directory import read_config
from penstock.processors.language.prompts import TextPrompts, read_prompts
from penstock.processors.language.request import with_prompts
from penstock.processors.multimodal.encoder import (
    BLACK,
    IDS,
    ChatEncoder,
    Encoded,
    Style,
    example,
    has_pixels,
    has_words,
    plain_encoder,
    styled,
)
from penstock.processors.multimodal.items import Item, Made, Make
from penstock.processors.multimodal.request import ChatMessage, MessageEmbeddingRequest, TextPart
from penstock.processors.vision.image import ImageArray

FORM = "sentence_bert_config.json"
#: The output of a network that is pooled.
_HIDDEN = "last_hidden_state"
#: Arguments of the text part of a form that change nothing here: the runner pads, and long texts are cut.
_WITHOUT_EFFECT = frozenset({"padding", "padding_side", "truncation", "return_tensors"})
#: Times a text is cut; its tokens may join with those beside it.
_CUTS = 4


@dataclass(frozen=True, slots=True)
class Messages:
    """The way of networks that read texts and images together."""

    model: Model
    encoder: ChatEncoder
    prompts: TextPrompts
    request: type[MessageEmbeddingRequest]
    #: False: the model's template loses a text or an image that stand together.
    together: bool

    @property
    def max_tokens(self) -> int | None:
        """The longest message in tokens."""
        return self.encoder.vocabulary.max_tokens

    def length(self, item: Item, index: int) -> int:
        """Return the tokens of the texts and the number of the images."""
        vocabulary = self.encoder.vocabulary
        texts = [part.text for part in item if isinstance(part, TextPart)]
        length = sum(len(vocabulary.encode_rendered(vocabulary.plain(text))) for text in texts)
        length += len(item) - len(texts)
        if not length:
            raise InvalidInput(f"Text {index} is empty.")
        if 0 < len(texts) < len(item) and not self.together:
            raise InvalidInput(
                f"Item {index} has a text and an image: the chat template of {self.model.name} takes them alone."
            )
        return length

    def maker(self, request: MessageEmbeddingRequest) -> Make:
        """Return the function that puts the request's prompt before an item."""
        prompt = self.prompts.of(self.model, request.prompt_name) if request.prompt is None else request.prompt
        before = [ChatMessage(role="system", content=prompt)] if prompt else []

        def make(item: Item, images: Sequence[ImageArray], length: int) -> Made:  # noqa: ARG001
            made, cut = self._cut(before, item, images)
            return Made("message", {**made.arrays, IDS: np.array([made.ids])}, len(made.ids), cut)

        return make

    def _cut(self, before: Sequence[ChatMessage], item: Item, images: Sequence[ImageArray]) -> tuple[Encoded, bool]:
        """Return the inputs with the longest text cut at its end until they fit, and True if it was cut."""
        most, parts = self.max_tokens, list(item)
        for cuts in range(_CUTS):
            made = self.encoder.encode([*before, ChatMessage(role="user", content=parts)], images)
            excess = 0 if most is None else len(made.ids) - most
            texts = [at for at, part in enumerate(parts) if isinstance(part, TextPart)]
            if excess <= 0:
                return made, cuts > 0
            if not texts:
                break
            at = max(texts, key=lambda at: len(_text(parts[at])))
            text = self.encoder.vocabulary.plain(_text(parts[at]))
            tokens = len(self.encoder.vocabulary.encode_rendered(text)) - excess
            if tokens < 1:
                break
            parts[at] = TextPart(type="text", text=self.encoder.vocabulary.shortened(text, tokens))
        raise InvalidInput(
            f"A message has {len(made.ids)} tokens with its images and its instruction, and the model takes {most}: "
            f"that is {excess} too many."
        )


def read_messages(model: Model) -> Messages:
    """Return the way of a chat network; raise `ModelUnavailable` for a form that is not computed here."""
    encoder = replace(plain_encoder(model), arguments=_arguments(model))
    if not getattr(encoder.processor, "chat_template", None):
        raise ModelUnavailable(
            f"model {model.name!r} has no chat template, which says how a text or an image is embedded"
        )
    if encoder.apart:
        raise ModelUnavailable(f"model {model.name!r}: its network answers by a decoder of its own, and embeds nothing")
    encoder = styled(model, encoder, _styles(model), _keeps_each)
    prompts = read_prompts(model)
    for name, text in prompts.named.items():
        if encoder.harmless(text) != text:
            raise ModelUnavailable(f"model {model.name!r}: its prompt {name!r} has special tokens in a system message")
    request = with_prompts(MessageEmbeddingRequest, tuple(prompts.named))
    return Messages(model, encoder, prompts, request, _keeps_both(encoder))


def _keeps_each(encoder: ChatEncoder) -> bool:
    """Return True if the encoder keeps the words of a text and the pixels of an image."""
    text = encoder.encode([example()], [])
    return has_words(encoder, text) and has_pixels(encoder.encode([example(image=True, text=False)], [BLACK]))


def _keeps_both(encoder: ChatEncoder) -> bool:
    """Return True if the encoder keeps a text beside an image; some templates take either."""
    try:
        made = encoder.encode([example(image=True)], [BLACK])
    except InvalidInput:
        return False
    return has_words(encoder, made) and has_pixels(made)


def _styles(model: Model) -> Sequence[Style]:
    """Return the forms of messages to try: the form that the directory names, else both forms."""
    settings = read_config(model, FORM)
    message = (settings.get("modality_config") or {}).get("message") or {}
    known = {"structured": [Style()], "flat": [Style(in_parts=False)]}
    named = settings.get("message_format", message.get("format"))
    return known.get(str(named), [Style(), Style(in_parts=False)])


def _arguments(model: Model) -> Mapping[str, Any]:
    """Return the arguments of the chat template and of the preparation of images, as the directory's form has them."""
    settings = read_config(model, FORM)
    modalities = settings.get("modality_config")
    if modalities is not None and "message" not in modalities:
        raise _refused(model, "its `modality_config` has no `message`: its texts and images are no chats")
    read_by = {} if modalities is None else modalities["message"]
    if (read_by.get("method", "forward"), read_by.get("method_output_name", _HIDDEN)) != ("forward", _HIDDEN):
        raise _refused(model, f"its messages are not read by `forward`, up to `{_HIDDEN}`")
    given = settings.get("processing_kwargs")
    if given is None:
        return {} if modalities else {"add_generation_prompt": True}
    template, text = dict(given.get("chat_template") or {}), given.get("text") or {}
    if template.pop("restore_suffix", True) is not True:
        raise _refused(model, "`restore_suffix` of its `chat_template` is false, and long texts keep the end here")
    strange = {*(given.keys() - {"chat_template", "text", "image", "video", "audio"}), *(text.keys() - _WITHOUT_EFFECT)}
    strange |= template.keys() & {"tokenize", "return_dict", "processor_kwargs", "max_length", *_WITHOUT_EFFECT}
    if strange:
        raise _refused(model, f"its `processing_kwargs` have {', '.join(sorted(strange))}, not computed here")
    return {**template, **({"processor_kwargs": {"images_kwargs": given["image"]}} if given.get("image") else {})}


def _refused(model: Model, why: str) -> ModelUnavailable:
    return ModelUnavailable(f"model {model.name!r}, {FORM}: {why}")


def _text(part: Any) -> str:
    return part.text if isinstance(part, TextPart) else ""
