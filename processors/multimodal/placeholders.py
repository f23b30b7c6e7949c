"""Places for pictures in a conversation's tokens.

They are made here alone: the model's chat template writes one token for each picture, which is then repeated as often
as the network sees features of it. What people type never becomes such a token (`Vocabulary.plain`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.errors import InvalidInput, ModelUnavailable
from penstock.models import Model
from penstock.processors.language.chat import ChatTemplate, read_chat_template
from penstock.processors.language.tokens import Vocabulary, read_vocabulary
from penstock.processors.multimodal.request import ChatMessage, ImagePart
from penstock.reports import Issue

_PROBE = "probe"


@dataclass(frozen=True, slots=True)
class Script:
    """Writes conversations as tokens, one for each picture."""

    template: ChatTemplate
    vocabulary: Vocabulary
    image_token_id: int
    #: Whether the template takes a message's pieces one by one; else it takes one text, which has the token inside.
    in_parts: bool = True

    def write(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Return a conversation's tokens.

        Raises `InvalidInput` where the template refuses it, or has no place for each of its pictures.
        """
        turns = [{"role": turn.role, "content": self._content(turn, at)} for at, turn in enumerate(messages)]
        ids = self._written(turns)
        pictures = sum(isinstance(part, ImagePart) for turn in messages for part in turn.parts)
        if (places := ids.count(self.image_token_id)) != pictures:
            said = f"The messages have {pictures} pictures, and the model's chat template made {places} places for them"
            raise InvalidInput(said, errors=[Issue("/input/messages", said)])
        return ids

    def fits(self) -> bool:
        """Whether a picture gets its place, and the text beside it stays."""
        message = ChatMessage.model_validate(
            {"role": "user", "content": [{"type": "image", "image": _PROBE}, {"type": "text", "text": _PROBE}]}
        )
        try:
            return _PROBE in self.vocabulary.decode(self.write([message]))
        except (InvalidInput, TypeError):  # of a template that adds a list to a text
            return False

    def _written(self, turns: list[dict[str, Any]]) -> list[int]:
        return self.vocabulary.encode_written(self.template.render(turns))

    def _content(self, turn: ChatMessage, at: int) -> str | list[Mapping[str, str]]:
        pieces: list[Mapping[str, str]] = []
        for part in turn.parts:
            if isinstance(part, ImagePart):
                pieces.append({"type": "image"})
            elif pieces and pieces[-1]["type"] == "text":
                pieces[-1] = {"type": "text", "text": pieces[-1]["text"] + part.text}
            else:
                pieces.append({"type": "text", "text": part.text})
        plain = [
            piece if piece["type"] == "image" else {**piece, "text": self.vocabulary.plain(piece["text"])}
            for piece in pieces
        ]
        self._check_together(plain, at)
        return plain if self.in_parts else self._as_text(plain)

    def _check_together(self, pieces: Sequence[Mapping[str, str]], at: int) -> None:
        """Raise `InvalidInput` for texts that are plain alone and make a special token where a template joins them."""
        text = "".join(piece.get("text", "") for piece in pieces)
        if self.vocabulary.plain(text) != text:
            said = "the texts before and after a picture make one of the model's special tokens together"
            raise InvalidInput(said, errors=[Issue(f"/input/messages/{at}/content", said)])

    def _as_text(self, pieces: Sequence[Mapping[str, str]]) -> str:
        token = f"{self.vocabulary.special[self.image_token_id]}\n"
        return "".join(piece.get("text", token) for piece in pieces)


def read_script(model: Model, image_token_id: int) -> Script:
    """Return how a model's conversations are written; raise `ModelUnavailable` where pictures have no place in them."""
    vocabulary = _with_token(model, read_vocabulary(model, truncate=False), image_token_id)
    template = read_chat_template(model)
    if template is None:
        raise ModelUnavailable(f"model {model.name!r} lacks a chat template: the file chat_template.jinja")
    script = Script(template, vocabulary, image_token_id)
    for found in (script, replace(script, in_parts=False)):
        if found.fits():
            return found
    token = vocabulary.special[image_token_id]
    raise ModelUnavailable(
        f"model {model.name!r}: its chat template has no place for a picture: it must write {token} once for each"
    )


def expanded(ids: Sequence[int], image_token_id: int, counts: Sequence[int]) -> list[int]:
    """Return tokens in which the n-th token that stands for a picture is there `counts[n]` times."""
    left = iter(counts)
    return [token for id_ in ids for token in ([id_] * next(left) if id_ == image_token_id else [id_])]


def _with_token(model: Model, vocabulary: Vocabulary, image_token_id: int) -> Vocabulary:
    """Return a vocabulary in which the pictures' token is special, whether or not its file says so."""
    token = vocabulary.tokenizer.id_to_token(image_token_id)
    if token is None or vocabulary.encode_written(token) != [image_token_id]:
        raise ModelUnavailable(
            f"model {model.name!r}: its tokenizer has no token {image_token_id}, "
            "which config.json calls the pictures' (image_token_id)"
        )
    return replace(vocabulary, special={**vocabulary.special, image_token_id: token})
