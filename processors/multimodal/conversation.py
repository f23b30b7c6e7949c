"""Conversations with images as tokens.

The model's chat template writes one placeholder token per image. The placeholder is then repeated, once for each of
the image's features. Text of users never becomes a placeholder (`Vocabulary.plain`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import InvalidInput, Issue, ModelUnavailable
from penstock.models import Model
from penstock.processors.language.chat import ChatTemplate, read_chat_template
from penstock.processors.language.tokens import Vocabulary, read_vocabulary
from penstock.processors.multimodal.request import ChatMessage, ImagePart

_PROBE = "probe"


@dataclass(frozen=True, slots=True)
class ConversationEncoder:
    """Encodes conversations as tokens, with one placeholder per image."""

    template: ChatTemplate
    vocabulary: Vocabulary
    image_token_id: int
    #: True if the template accepts a list of parts; otherwise a message is one text that contains the placeholders.
    in_parts: bool = True

    def encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return a conversation's tokens.

        Raises `InvalidInput` if the template rejects the conversation or writes too few or too many placeholders.
        """
        turns = [{"role": turn.role, "content": self._content(turn, at)} for at, turn in enumerate(messages)]
        ids = self._written(turns)
        images = sum(isinstance(part, ImagePart) for turn in messages for part in turn.parts)
        if (placeholders := ids.count(self.image_token_id)) != images:
            detail = f"The messages have {images} images, but the chat template wrote {placeholders} placeholders"
            raise InvalidInput(detail, errors=[Issue("/input/messages", detail)])
        return ids

    def fits(self) -> bool:
        """Return True if the template keeps both an image and the text beside it."""
        message = ChatMessage.model_validate(
            {"role": "user", "content": [{"type": "image", "image": _PROBE}, {"type": "text", "text": _PROBE}]}
        )
        try:
            return _PROBE in self.vocabulary.decode(self.encode([message]))
        except (InvalidInput, TypeError):  # TypeError: the template adds a list to a text
            return False

    def _written(self, turns: list[dict[str, Any]]) -> list[int]:
        return self.vocabulary.encode_rendered(self.template.render(turns))

    def _content(self, turn: ChatMessage, at: int) -> str | list[Mapping[str, str]]:
        parts: list[Mapping[str, str]] = []
        for part in turn.parts:
            if isinstance(part, ImagePart):
                parts.append({"type": "image"})
            elif parts and parts[-1]["type"] == "text":
                parts[-1] = {"type": "text", "text": parts[-1]["text"] + part.text}
            else:
                parts.append({"type": "text", "text": part.text})
        plain = [
            part if part["type"] == "image" else {**part, "text": self.vocabulary.plain(part["text"])} for part in parts
        ]
        self._check_joined(plain, at)
        return plain if self.in_parts else self._as_text(plain)

    def _check_joined(self, parts: Sequence[Mapping[str, str]], at: int) -> None:
        """Raise `InvalidInput` if texts around an image would form a special token when a template joins them."""
        text = "".join(part.get("text", "") for part in parts)
        if self.vocabulary.plain(text) != text:
            detail = "the texts before and after an image form one of the model's special tokens together"
            raise InvalidInput(detail, errors=[Issue(f"/input/messages/{at}/content", detail)])

    def _as_text(self, parts: Sequence[Mapping[str, str]]) -> str:
        token = f"{self.vocabulary.special[self.image_token_id]}\n"
        return "".join(part.get("text", token) for part in parts)


def read_conversation_encoder(model: Model, image_token_id: int) -> ConversationEncoder:
    """Return the model's encoder; raise `ModelUnavailable` if its chat template writes no placeholders for images."""
    vocabulary = _with_token(model, read_vocabulary(model, truncate=False), image_token_id)
    template = read_chat_template(model)
    if template is None:
        raise ModelUnavailable(f"model {model.name!r} lacks a chat template: the file chat_template.jinja")
    encoder = ConversationEncoder(template, vocabulary, image_token_id)
    for found in (encoder, replace(encoder, in_parts=False)):
        if found.fits():
            return found
    token = vocabulary.special[image_token_id]
    raise ModelUnavailable(
        f"model {model.name!r}: its chat template has no placeholder for images: it must write {token} once per image"
    )


def expand_placeholders(ids: Sequence[int], image_token_id: int, counts: Sequence[int]) -> list[int]:
    """Return the tokens with the n-th placeholder repeated `counts[n]` times."""
    left = iter(counts)
    return [token for id_ in ids for token in ([id_] * next(left) if id_ == image_token_id else [id_])]


def _with_token(model: Model, vocabulary: Vocabulary, image_token_id: int) -> Vocabulary:
    """Return a vocabulary in which the image placeholder is a special token, even if its file does not say so."""
    token = vocabulary.tokenizer.id_to_token(image_token_id)
    if token is None or vocabulary.encode_rendered(token) != [image_token_id]:
        raise ModelUnavailable(
            f"model {model.name!r}: its tokenizer lacks the image_token_id of config.json, {image_token_id}"
        )
    return replace(vocabulary, special={**vocabulary.special, image_token_id: token})
