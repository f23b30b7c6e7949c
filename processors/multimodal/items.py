"""Items of a text and image embedder, which get one vector each: a text, an image, or several of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.processors.base import Array
from penstock.processors.multimodal.request import ImagePart, TextPart
from penstock.processors.vision.image import ImageArray

#: Model types with one network for texts and one for images, whose vectors lie in one space. Others are chat networks.
TOWERS = frozenset({"altclip", "chinese_clip", "clip", "clipseg", "metaclip_2", "siglip", "siglip2"})

#: Texts and images that get one vector, in order.
Item = Sequence[TextPart | ImagePart]


@dataclass(frozen=True, slots=True)
class Made:
    """The inputs of one prompt by the library's names, with their batch axis of 1 or of images."""

    #: `text` or `image` for the tower of that name, else `message`.
    kind: str
    arrays: Mapping[str, Array]
    tokens: int = 0
    #: True if a text was too long and was cut.
    cut: bool = False


#: Makes the inputs of an item from its images in order and its length.
Make = Callable[[Item, Sequence[ImageArray], int], Made]
