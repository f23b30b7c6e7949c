"""The common part of all processors of scenes: the prompts of a scene, or of some of its strips, and a dummy."""

from __future__ import annotations

from pathlib import Path
from typing import Generic

from penstock.models import Limits, Model
from penstock.processors.base import Dummy, Media, Prepared
from penstock.processors.geo.mapping import MappingContext, RequestT, SceneRunner


class SceneProcessor(Generic[RequestT]):
    """A processor of scenes of any size in tiles; memory does not grow with the scene."""

    _runner: SceneRunner

    def __init__(self, model: Model, runner: SceneRunner) -> None:
        self._model, self._runner = model, runner

    def pre_process(self, request: RequestT, media: Media) -> Prepared[MappingContext[RequestT]]:
        """Plan a scene and return its prompts; see `SceneRunner.prepare`."""
        return self._prepared(request, media)

    def pre_process_part(
        self, request: RequestT, media: Media, first: int, last: int
    ) -> Prepared[MappingContext[RequestT]]:
        """Return the prompts of some strips of a scene; see `PartProcessor`."""
        return self._prepared(request, media, range(first, last + 1))

    def dummy(self, limits: Limits, folder: Path) -> Dummy:
        """Return a scene of noise; see `SceneRunner.dummy`."""
        return self._runner.dummy(limits, folder)

    def _prepared(
        self, request: RequestT, media: Media, part: range | None = None
    ) -> Prepared[MappingContext[RequestT]]:
        return self._runner.prepare(request, request.outputs, media, part)  # type: ignore[attr-defined]
