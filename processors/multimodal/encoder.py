"""Conversations with images and videos as the inputs of a network, by the library's own processor.

The processor of transformers renders the conversation, prepares the images and makes the network's inputs. All inputs
cross to the engine as they are. Text of users never becomes a placeholder: whatever the tokenizer or the processor
would find in it is broken by a space first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer

from penstock.errors import InvalidInput, Issue, ModelUnavailable, first_line
from penstock.models import Model
from penstock.processors.base import Array
from penstock.processors.directory import read_config
from penstock.processors.language.tokens import Vocabulary, max_tokens
from penstock.processors.multimodal.library import as_array, is_encoder_decoder, load_processor
from penstock.processors.multimodal.processed import describe, read_processed
from penstock.processors.multimodal.request import ChatMessage, ImagePart, TextPart, VideoPart
from penstock.processors.multimodal.videos import Clip
from penstock.processors.vision.image import ImageArray

#: Names of the network's inputs in a prompt: the library's names behind this.
INPUTS_NAME = "inputs.{}"
#: Name of the list of the outputs that a prompt wants of a network of one pass.
OUTPUTS_NAME = "outputs"
IDS = "input_ids"
#: Side in pixels and words of the example that shows how a processor wants its input.
_PROBE_PX, _PROBE = 64, "probe"

#: Names of fields of `config.json` with the ids of placeholders.
_PLACEHOLDER = re.compile(r"(image|img|video|vision|visual|audio|boi|eoi|boa|eoa).*token_(id|ids|index)$")

Part = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation as the inputs of a network."""

    #: Token ids; empty for networks that take the text inside of an image.
    ids: list[int]
    #: The other inputs by the library's names, with their batch axis of 1 or of images.
    arrays: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Style:
    """The form of a processor's input."""

    #: True: a conversation for the chat template. False: the text of a single message.
    template: bool = True
    #: True: every content is a list of parts. False: contents without images are texts.
    in_parts: bool = True
    #: Without a template: the text that stands before the message for each image.
    before: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """The media of a conversation that are not yet in a message."""

    images: Iterator[Image.Image]
    clips: Iterator[Clip]


@dataclass(frozen=True, slots=True)
class ChatEncoder:
    """Encodes conversations by a processor of the library."""

    processor: Any
    vocabulary: Vocabulary
    #: True: the answer does not continue the prompt's tokens.
    apart: bool
    #: Texts that the processor itself replaces; the tokenizer may not know them.
    marks: Sequence[str]
    style: Style = field(default_factory=Style)
    #: Arguments of the chat template and the processor.
    arguments: Mapping[str, Any] = field(default_factory=lambda: {"add_generation_prompt": True})

    def encode(self, turns: Sequence[ChatMessage], images: Sequence[ImageArray], clips: Sequence[Clip] = ()) -> Encoded:
        """Return the network's inputs for a conversation with its images and its videos, each in order.

        Raises `InvalidInput` with the processor's reason if it rejects the conversation or the media.
        """
        left = Left(iter([Image.fromarray(image) for image in images]), iter(clips))
        contents = [self._parts(turn, at, left) for at, turn in enumerate(turns)]
        try:
            make = self._processed if self.style.template else self._processed_text
            made = make(turns, contents, clips)
        except (ValueError, TypeError) as error:  # TypeError: the template adds a list to a text
            raise InvalidInput(f"The model's processor rejects these messages: {first_line(error)}") from error
        except Exception as error:
            if "TemplateError" not in {cls.__name__ for cls in type(error).__mro__}:
                raise
            raise InvalidInput(f"The model's chat template rejects these messages: {first_line(error)}") from error
        return _encoded(made)

    def read(self, path: Path) -> Encoded:
        """Return processed inputs of a file; see `read_processed`."""
        examples = list(self._examples())
        made = read_processed(path, describe(examples), IDS if IDS in examples[0] else None)
        return Encoded(_listed(made.get(IDS)), {name: array for name, array in made.items() if name != IDS})

    def _examples(self) -> Iterator[dict[str, Array]]:
        """Yield the inputs of chats with texts and images of several sizes, as far as the processor accepts them."""
        square, wide = (_PROBE_PX, _PROBE_PX), (_PROBE_PX, 2 * _PROBE_PX)
        for length, sides in enumerate(((square,), (wide,), (square, square), ()), start=1):
            words = TextPart(type="text", text=_PROBE * length)
            shown = [ImagePart(type="image", image=_PROBE) for _ in sides]
            black = [np.zeros((*side, 3), dtype=np.uint8) for side in sides]
            try:
                made = self.encode([ChatMessage(role="user", content=[*shown, words])], black)
            except Exception:  # noqa: S112  (the library's are of any type; many types take one image)
                continue
            yield {**made.arrays, **({IDS: np.array([made.ids])} if made.ids else {})}

    def harmless(self, text: str) -> str:
        """Return the text with a space inside each special token and each mark of the processor."""
        for mark in self.marks:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return self.vocabulary.plain(text)

    def _parts(self, turn: ChatMessage, at: int, left: Left) -> list[Part]:
        parts: list[Part] = []
        given: list[TextPart | ImagePart | VideoPart] = [*turn.parts]
        for part in given:
            if isinstance(part, ImagePart):
                parts.append({"type": "image", "image": next(left.images)})
            elif isinstance(part, VideoPart):
                parts.append({"type": "video", "video": next(left.clips).frames})
            elif parts and parts[-1]["type"] == "text":
                parts[-1] = {"type": "text", "text": parts[-1]["text"] + part.text}
            else:
                parts.append({"type": "text", "text": part.text})
        plain = [part | {"text": self.harmless(part["text"])} if "text" in part else part for part in parts]
        joined = "".join(part.get("text", "") for part in plain)
        if self.harmless(joined) != joined:
            detail = "the texts before and after an image or a video form one of the model's special tokens together"
            raise InvalidInput(detail, errors=[Issue(f"/input/messages/{at}/content", detail)])
        return plain

    def _processed(
        self, turns: Sequence[ChatMessage], contents: Sequence[list[Part]], clips: Sequence[Clip]
    ) -> Mapping[str, Any]:
        messages = [
            {"role": turn.role, "content": content if self.style.in_parts else _shortest(content)}
            for turn, content in zip(turns, contents, strict=True)
        ]
        # The frames were chosen before they were decoded.
        videos = {"do_sample_frames": False, "video_metadata": [clip.metadata for clip in clips]}
        given = {"processor_kwargs": {"videos_kwargs": videos}} if clips else {}
        made: Mapping[str, Any] = self.processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt", **self.arguments, **given
        )
        return made

    def _processed_text(
        self, turns: Sequence[ChatMessage], contents: Sequence[list[Part]], clips: Sequence[Clip]
    ) -> Mapping[str, Any]:
        if clips:
            raise ValueError("it has no chat template, and takes no videos")
        if len(turns) != 1 or turns[0].role != "user":
            raise ValueError("it has no chat template, and takes one message of a user")
        kinds = [part["type"] for part in contents[0]]
        after = kinds[kinds.index("text") :] if "text" in kinds else []
        if "image" in after and getattr(self.processor, "image_token", None):
            raise ValueError("it has no chat template, and takes all images before the text")
        images = [part["image"] for part in contents[0] if part["type"] == "image"]
        text = self.style.before * len(images) + "".join(part.get("text", "") for part in contents[0])
        # Several images of one text are a batch of lists.
        given: dict[str, Any] = {"images": [images] if len(images) > 1 else images} if images else {}
        made: Mapping[str, Any] = self.processor(text=text, return_tensors="pt", **given)
        return made


def read_chat_encoder(model: Model) -> ChatEncoder:
    """Return the model's encoder; raise `ModelUnavailable` if the library's processor takes no images with text."""
    encoder = plain_encoder(model)
    return styled(model, encoder, _styles(encoder.processor), _keeps_words)


def plain_encoder(model: Model) -> ChatEncoder:
    """Return the model's encoder without its style; raise `ModelUnavailable` as `read_chat_encoder` does."""
    processor = load_processor(model)
    tokenizer = getattr(processor, "tokenizer", None)
    if not hasattr(processor, "image_processor") or tokenizer is None:
        raise ModelUnavailable(f"model {model.name!r}: {type(processor).__name__} takes no images with text")
    if not getattr(tokenizer, "is_fast", False):
        raise ModelUnavailable(f"model {model.name!r} lacks the file tokenizer.json, which its tokenizer is read from")
    if not getattr(processor, "chat_template", None):
        processor.chat_template = getattr(tokenizer, "chat_template", None)  # where older directories have it
    marks = marks_of(processor)
    vocabulary = library_vocabulary(model, tokenizer, marks)
    return ChatEncoder(processor, vocabulary, is_encoder_decoder(model), marks)


def styled(
    model: Model, encoder: ChatEncoder, styles: Sequence[Style], keeps: Callable[[ChatEncoder], bool]
) -> ChatEncoder:
    """Return the encoder with the first style whose example the processor accepts, without losing its words.

    `keeps` tries an encoder. Raises `ModelUnavailable` with the reason against the first style.
    """
    reason = ""
    for style in styles:
        tried = replace(encoder, style=style)
        try:
            if keeps(tried):
                return tried
            reason = reason or "its text or its image is lost"
        except Exception as error:  # the library's are of any type
            reason = reason or first_line(error) or type(error).__name__
    raise ModelUnavailable(
        f"model {model.name!r}: {type(encoder.processor).__name__} takes no chat of a text and an image: {reason}"
    )


def _styles(processor: Any) -> list[Style]:
    if getattr(processor, "chat_template", None):
        return [Style(), Style(in_parts=False)]
    token = getattr(processor, "image_token", None)
    return [Style(template=False), *([Style(template=False, before=str(token))] if token else [])]


def _keeps_words(encoder: ChatEncoder) -> bool:
    """Return True if the encoder's input has the words of an example and an image.

    Templates that reject a first turn of the assistant or two turns are tried with one message.
    """
    shown = example(image=True)
    made = encoder.encode([shown], [BLACK])
    if not has_pixels(made) or (made.ids and not has_words(encoder, made)):
        return False
    if not encoder.style.template:
        return True
    said = [example(), ChatMessage(role="assistant", content=_PROBE), shown]
    try:
        return has_words(encoder, encoder.encode(said, [BLACK]))
    except InvalidInput:  # it takes one turn only
        return True


#: The image of an example.
BLACK = np.zeros((_PROBE_PX, _PROBE_PX, 3), dtype=np.uint8)


def example(*, image: bool = False, text: bool = True) -> ChatMessage:
    """Return a message with an image, with words, or with both."""
    shown = [ImagePart(type="image", image=_PROBE)] if image else []
    words = [TextPart(type="text", text=_PROBE)] if text else []
    return ChatMessage(role="user", content=[*shown, *words])


def has_pixels(made: Encoded) -> bool:
    """Return True if an encoded example has an image."""
    return any(array.dtype.kind == "f" for array in made.arrays.values())


def has_words(encoder: ChatEncoder, made: Encoded) -> bool:
    """Return True if an encoded example has its words."""
    text = encoder.vocabulary.decode(made.ids)
    return _PROBE in text and "{'" not in text


def _shortest(content: list[Part]) -> str | list[Part]:
    """Return the text of a message without images."""
    return content[0]["text"] if len(content) == 1 and content[0]["type"] == "text" else content


def marks_of(processor: Any) -> list[str]:
    """Return the texts that a processor and its tokenizers name as tokens, the longest first."""
    found = list(getattr(processor, "all_special_multimodal_tokens", ()))
    tokenizers = [getattr(processor, name) for name in processor.get_attributes() if "tokenizer" in name]
    for owner in (processor, *tokenizers):
        found += [getattr(owner, name, None) for name in {*vars(owner), *dir(type(owner))} if name.endswith("token")]
        found += getattr(owner, "all_special_tokens", ())
    texts = {getattr(mark, "content", mark) for mark in found}  # some are tokens of `tokenizers`
    return sorted((mark for mark in texts if isinstance(mark, str) and len(mark) > 1), key=len, reverse=True)


def library_vocabulary(model: Model, tokenizer: Any, marks: Sequence[str]) -> Vocabulary:
    """Return the library's tokenizer for decoding, and for finding special tokens in users' texts.

    Placeholders that `config.json` names count as special tokens, even where the tokenizer does not call them so.
    """
    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    added = own.get_added_tokens_decoder()
    special = {number: token.content for number, token in added.items() if token.special or token.content in marks}
    for number in _placeholders(read_config(model)):
        if number not in special and (token := own.id_to_token(number)) is not None:
            special[number] = token
    return Vocabulary(own, max_tokens(model, model.limits), special)


def _placeholders(config: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ids of tokens that stand for images, videos or sound, as a configuration names them."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _placeholders(value)
        elif _PLACEHOLDER.search(name):
            yield from (one for one in (value if isinstance(value, list) else [value]) if type(one) is int)


def _encoded(made: Mapping[str, Any]) -> Encoded:
    """Return the processor's tensors as arrays; lists of arrays get a number each."""
    arrays: dict[str, Array] = {}
    for name, value in made.items():
        if value is None or name == IDS:
            continue
        if isinstance(value, list | tuple):
            arrays.update({f"{name}.{number}": as_array(one) for number, one in zip(count(), value, strict=False)})
        else:
            arrays[name] = as_array(value)
    ids = made.get(IDS)
    return Encoded(_listed(None if ids is None else as_array(ids)), arrays)


def _listed(ids: Array | None) -> list[int]:
    return [] if ids is None else [int(number) for number in ids.reshape(-1)]
