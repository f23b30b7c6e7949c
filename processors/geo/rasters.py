"""The rasters of a job while they are written, and their way to the sink as COGs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt

import penstock
from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.artifacts import Handover
from penstock.processors.geo.cog import COG_TYPE, Dtype, Scratch, write_cog
from penstock.processors.geo.mlm import stac_mlm
from penstock.processors.geo.plan import Box
from penstock.processors.geo.provenance import Provenance
from penstock.processors.geo.radiometry import Radiometry
from penstock.processors.geo.raster import Scene
from penstock.processors.geo.stac import ITEM_TYPE, MODEL_ITEM, stac_item

#: Arrays (bands, rows, columns) by the name of the raster.
Rasters = Mapping[str, npt.NDArray[Any]]


class RasterSet:
    """Scratch rasters on one scene's grid, by name. A context manager; what is scratch goes at its end."""

    def __init__(self, model: Model, scene: Scene, radiometry: Radiometry, sink: ArtifactSink, *, hashed: bool) -> None:
        self.model, self.scene = model, scene
        self.handover = Handover(sink, hashed=hashed)
        self._tags = _tags(model, radiometry)
        self._open = ExitStack()
        self._scratches: dict[str, Scratch] = {}

    def __enter__(self) -> RasterSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for scratch in self._scratches.values():
            scratch.path.unlink(missing_ok=True)

    def open(self, name: str, count: int, dtype: Dtype = "uint8") -> Scratch:
        """Return a new raster, to be labelled before the first `write`."""
        path = self.handover.sink.path(f"{name}.scratch.tif")
        scratch = self._open.enter_context(Scratch(path, self.scene, count, self._tags, dtype))
        self._scratches[name] = scratch
        return scratch

    def write(self, rasters: Rasters, box: Box) -> None:
        """Write to a box of every raster that is open."""
        for name, scratch in self._scratches.items():
            scratch.write(rasters[name], box)

    def close(self) -> None:
        """End the writing: the files can be read now."""
        self._open.close()

    def path(self, name: str) -> Path:
        """Return the file of a closed raster."""
        return self._scratches[name].path

    def hand_over_cog(self, name: str, overviews: Literal["MODE", "AVERAGE"], fields: Mapping[str, Any]) -> None:
        """Hand over a closed raster as `<name>.tif`; `fields` are those of its STAC asset."""
        write_cog(self.path(name), path := self.handover.sink.path(f"{name}.tif"), overviews=overviews)
        title = name.replace("_", ", ")
        self.handover.add(path.name, path, COG_TYPE, title=title, roles=("data",), fields=fields)

    def hand_over_item(self, provenance: Provenance) -> None:
        """Hand over the STAC items of all that was handed over so far, and of the model."""
        item = stac_item(self.model, self.scene, provenance, self.handover.done)
        model, roles = stac_mlm(self.model), ("metadata",)
        self.handover.add_json(MODEL_ITEM, model, title="the model", roles=roles, media_type=ITEM_TYPE)
        self.handover.add_json("item.json", item, title="STAC item", roles=roles, media_type=ITEM_TYPE)

    def stats(self, provenance: Provenance, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the statistics: what was run on what, the `counts`, and how the scene was read."""
        first, *others = (source.etag for source in provenance.sources)
        several = {"etags": [first, *others]} if others else {}
        return {
            "model": {"name": self.model.name, "revision": self.model.revision},
            "scene": {"width": self.scene.width, "height": self.scene.height, "etag": first, **several},
            **counts,
            **provenance.used,
            "notes": list(provenance.notes),
        }


def _tags(model: Model, radiometry: Radiometry) -> dict[str, str]:
    """Return the tags of every raster: nothing of the job, and not the source's etag.

    The same scene gives the same bytes, whichever way it came in. Both stand in the statistics and the STAC item.
    """
    return {
        "TIFFTAG_SOFTWARE": f"penstock {penstock.__version__}",
        "MODEL": model.name,
        "MODEL_REVISION": model.revision,
        "RADIOMETRY": ", ".join(f"{name} {value}" for name, value in radiometry.to_json().items()),
    }
