"""Penstock: inference as a job queue, for models whose answer is more than text.

`penstock.Engine` runs models in this process (see `penstock.local.library`), `penstock.client` speaks to a service.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.functions.declaration import Audio as Audio
    from penstock.functions.declaration import Boxes as Boxes
    from penstock.functions.declaration import Document as Document
    from penstock.functions.declaration import Field as Field
    from penstock.functions.declaration import File as File
    from penstock.functions.declaration import Image as Image
    from penstock.functions.declaration import InvalidInput as InvalidInput
    from penstock.functions.declaration import Labels as Labels
    from penstock.functions.declaration import Page as Page
    from penstock.functions.declaration import Pixels as Pixels
    from penstock.functions.declaration import Progress as Progress
    from penstock.functions.declaration import Table as Table
    from penstock.functions.declaration import Tensor as Tensor
    from penstock.functions.declaration import Text as Text
    from penstock.functions.declaration import Vector as Vector
    from penstock.functions.declaration import Video as Video
    from penstock.functions.declaration import codec as codec
    from penstock.functions.declaration import model as model
    from penstock.functions.declaration import weights as weights
    from penstock.functions.scenes import Band as Band
    from penstock.functions.scenes import Classes as Classes
    from penstock.functions.scenes import Quantities as Quantities
    from penstock.functions.scenes import Scene as Scene
    from penstock.local.library import Engine as Engine

    __version__: str

#: Names that files of functions import.
_OF_FUNCTIONS = frozenset({
    "Audio", "Boxes", "Document", "Field", "File", "Image", "InvalidInput", "Labels", "Page", "Pixels", "Progress",
    "Table", "Tensor", "Text", "Vector", "Video", "codec", "model", "weights",
})  # fmt: skip
_OF_SCENES = frozenset({"Band", "Classes", "Quantities", "Scene"})


def __getattr__(name: str) -> object:
    """Import what is asked for: `Engine` brings what processors and models need, functions nothing."""
    if name in _OF_FUNCTIONS:
        return getattr(import_module("penstock.functions.declaration"), name)
    if name in _OF_SCENES:
        return getattr(import_module("penstock.functions.scenes"), name)
    if name == "__version__":  # in an environment of a model it is not installed
        return import_module("importlib.metadata").version("penstock")
    if name == "Engine":
        return import_module("penstock.local.library").Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
