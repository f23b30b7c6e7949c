"""A file of several rasters, opened: what `SceneOpener` takes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.processors.geo.mask_kinds import MaskKindName
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.read.sidecar import Sidecar


@dataclass(frozen=True, slots=True)
class Raster:
    """A raster in a file."""

    #: Name of the variable, or of the file inside an archive.
    name: str
    scene: Scene


@dataclass(frozen=True, slots=True)
class Product:
    """The rasters of a file, and what else it says about them."""

    rasters: tuple[Raster, ...]
    #: The product's metadata, if they lie in the file.
    sidecar: Sidecar | None = None
    #: The provider's masks, by kind.
    masks: Mapping[MaskKindName, Raster] = field(default_factory=dict)
    #: Sentences without a full stop about variables that are no scene.
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
