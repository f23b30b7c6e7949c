"""Rasters of a job: scratch files during processing, COGs and STAC items at the end."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy.typing as npt

import penstock
from penstock.models import Model
from penstock.processors.base import ArtifactSink
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.radiometry import Radiometry
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.write.artifacts import ArtifactWriter
from penstock.processors.geo.write.cog import BLOCK_PX, COG_TYPE, Dtype, Overviews, Scratch, write_cog
from penstock.processors.geo.write.crs import crs_to_json
from penstock.processors.geo.write.mlm import stac_mlm
from penstock.processors.geo.write.stac import ITEM_TYPE, MODEL_ITEM, stac_item

#: Note in the statistics of a scene that no STAC item can describe.
UNDATED = (
    "item.json was not created: STAC requires the acquisition time, and neither the request nor the scene's metadata "
    "gives one that can be read. Give `datetime`, for each date if there are several."
)

#: Arrays (bands, rows, columns) by raster name.
RasterArrays = Mapping[str, npt.NDArray[Any]]


class RasterSet:
    """Scratch rasters on one scene's grid, by name. A context manager that deletes the scratch files at its end.

    `radiometry` is that of the one scene from which the rasters are made; None for several scenes. `described` is True
    if STAC items are wanted.
    """

    def __init__(
        self, model: Model, scene: Scene, radiometry: Radiometry | None, sink: ArtifactSink, *, described: bool
    ) -> None:
        self.model, self.scene = model, scene
        self.artifacts = ArtifactWriter(sink, hashed=described)
        self._described = described
        self._tags = _tags(model, radiometry)
        self._open = ExitStack()
        self._scratches: dict[str, Scratch] = {}

    def __enter__(self) -> RasterSet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for scratch in self._scratches.values():
            scratch.path.unlink(missing_ok=True)

    def open(self, name: str, count: int, dtype: Dtype = "uint8", *, block_px: int = BLOCK_PX) -> Scratch:
        """Create a raster; set its labels before the first `write`."""
        path = self.artifacts.sink.path(f"{name}.scratch.tif")
        scratch = self._open.enter_context(Scratch(path, self.scene, count, self._tags, dtype, block_px=block_px))
        self._scratches[name] = scratch
        return scratch

    def write_one(self, name: str, values: npt.NDArray[Any], box: Box) -> None:
        """Write a box of one open raster."""
        self._scratches[name].write(values, box)

    def write(self, rasters: RasterArrays, box: Box) -> None:
        """Write a box of every open raster."""
        for name, scratch in self._scratches.items():
            scratch.write(rasters[name], box)

    def close(self) -> None:
        """Close all rasters, so that the files can be read."""
        self._open.close()

    def path(self, name: str) -> Path:
        """Return the file of a closed raster."""
        return self._scratches[name].path

    def add_cog(self, name: str, overviews: Overviews, fields: Mapping[str, Any], *, block_px: int = BLOCK_PX) -> None:
        """Add a closed raster as the COG `<name>.tif`; `fields` are the fields of its STAC asset."""
        path = self.artifacts.sink.path(f"{name}.tif")
        write_cog(self.path(name), path, overviews=overviews, block_px=block_px)
        title = name.replace("_", ", ")
        self.artifacts.add(path.name, path, COG_TYPE, title=title, roles=("data",), fields=fields)

    def add_item(self, provenance: Provenance) -> None:
        """Add the STAC items of all artifacts so far, if the scene's time is known, and of the model."""
        described, roles = tuple(self.artifacts.done), ("metadata",)
        self.artifacts.add_json(MODEL_ITEM, stac_mlm(self.model), title="the model", roles=roles, media_type=ITEM_TYPE)
        if provenance.acquired:
            item = stac_item(self.model, self.scene, provenance, described)
            self.artifacts.add_json("item.json", item, title="STAC item", roles=roles, media_type=ITEM_TYPE)

    def stats(self, provenance: Provenance, counts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the statistics: model, scene, the `counts`, and the inputs that were used."""
        first, *others = (source.etag for source in provenance.sources)
        several = {"etags": [first, *others]} if others else {}
        scene = self.scene
        crs = None if scene.transform is None else crs_to_json(scene.crs, *(scene.transform @ _middle(scene)))
        return {
            "model": {"name": self.model.name, "revision": self.model.revision},
            "scene": {"width": scene.width, "height": scene.height, "crs": crs, "etag": first, **several},
            **counts,
            **provenance.used,
            "notes": [*provenance.notes, *([UNDATED] if self._described and not provenance.acquired else [])],
        }


def _middle(scene: Scene) -> tuple[float, float]:
    return scene.width / 2, scene.height / 2


def _tags(model: Model, radiometry: Radiometry | None) -> dict[str, str]:
    """Return the tags of every raster, without job and source etag.

    Therefore the same scene gives the same bytes, whatever the upload method. The statistics and the STAC item record
    the source.
    """
    used = {} if radiometry is None else radiometry.to_json()
    return {
        "TIFFTAG_SOFTWARE": f"penstock {penstock.__version__}",
        "MODEL": model.name,
        "MODEL_REVISION": model.revision,
        **({"RADIOMETRY": ", ".join(f"{name} {value}" for name, value in used.items())} if used else {}),
    }
