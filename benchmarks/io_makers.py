"""The processors of `benchmarks.io_processes`, in a module that imports no more than a processor does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import BaseModel

from penstock.models import MediaReference, Model
from penstock.processors.base import ArtifactSink, Media, Output, Prepared, Prompt, Result

MEAN, STD = np.float32(0.4), np.float32(0.2)
TILE_PX, BANDS = 768, 6


class Request(BaseModel):
    """Request: a file, the number of prompts, and the size of plain arrays."""

    file: MediaReference = "media://file"
    prompts: int
    size_bytes: int = 0


class Maker(ABC):
    """A processor that creates prompts and ignores the outputs."""

    request = Request
    outputs = ()

    def __init__(self, model: Model) -> None:
        self._model = model

    def pre_process(self, request: Request, media: Media) -> Prepared[None]:
        prompts = (Prompt({"pixels": array}) for array in self.make(request, media.path(request.file)))
        return Prepared(prompts, request.prompts, request.prompts, None)

    def post_process(self, outputs: Iterator[Output], context: None, sink: ArtifactSink) -> Result:  # noqa: ARG002
        return Result(text=str(sum(1 for _ in outputs)))

    @abstractmethod
    def make(self, request: Request, path: Path) -> Iterator[np.ndarray]:
        """Yield the arrays of a job's prompts."""


class Images(Maker):
    """JPEG -> 224 x 224, normalised, float32 (3, 224, 224): 0.6 MB."""

    def make(self, request: Request, path: Path) -> Iterator[np.ndarray]:
        for _ in range(request.prompts):
            with Image.open(path) as image:
                small = image.convert("RGB").resize((224, 224), Image.Resampling.BICUBIC)
            yield (np.asarray(small, np.float32).transpose(2, 0, 1) / 255 - MEAN) / STD


class Tiles(Maker):
    """Windows of a GeoTIFF, normalised, float32 (6, 768, 768): 14 MB."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        import_module("penstock.processors.geo.read.gdal")  # as a processor's module does when it is loaded

    def make(self, request: Request, path: Path) -> Iterator[np.ndarray]:
        from penstock.processors.geo.read.gdal import rasterio

        with rasterio.open(path) as scene:
            for number in range(request.prompts):
                window = rasterio.windows.Window(TILE_PX * (number % 2), TILE_PX * (number // 2 % 2), TILE_PX, TILE_PX)
                yield (scene.read(window=window).astype(np.float32) * np.float32(1e-4) - MEAN) / STD


class Words(Maker):
    """Pure Python work: count a few thousand words, int64 (n,)."""

    def make(self, request: Request, path: Path) -> Iterator[np.ndarray]:  # noqa: ARG002
        text = "the quick brown fox jumps over the lazy dog " * 500
        for _ in range(request.prompts):
            seen: dict[str, int] = {}
            for word in text.split():
                seen[word] = seen.get(word, 0) + sum(map(ord, word))
            yield np.array(list(seen.values()))


class Arrays(Maker):
    """The same array repeatedly, so that only the transfer is measured."""

    def make(self, request: Request, path: Path) -> Iterator[np.ndarray]:  # noqa: ARG002
        array = np.ones(request.size_bytes, np.uint8)
        for _ in range(request.prompts):
            yield array


MAKERS = {"images": Images, "tiles": Tiles, "words": Words, "arrays": Arrays}
