"""Change between two class maps of one grid: a raster of lost, gained and kept pixels, its polygons and areas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.request import PolygonRequest
from penstock.processors.geo.tiling.plan import Box
from penstock.processors.geo.wanted_classes import WantedClasses
from penstock.processors.geo.write.area import PixelArea, pixel_area
from penstock.processors.geo.write.class_files import add_class_raster, add_polygons
from penstock.processors.geo.write.cog import scratch_rows
from penstock.processors.geo.write.raster_set import RasterSet
from penstock.processors.geo.write.stats import ClassCounts

#: Values of the change raster. Blue and orange are told apart by nearly everybody.
ABSENT, LOST, GAINED, KEPT = range(4)
_COLOURS: Final = ("#f0f0f0", "#e08214", "#2166ac", "#92c5de")
_SIDE = NODATA + 1
#: Outputs that include the COG of the change.
_WITH_COG: Final = frozenset({"classes", "change"})

Ids = npt.NDArray[np.uint8]


def change_of(before: Ids, after: Ids, of: Collection[int], ignored: Collection[int]) -> Ids:
    """Return the change of two class maps: absent, lost, gained or kept, for classes that count as one (`of`).

    A pixel that has no data or an ignored class at either date has no data: nothing is known of its change.
    """
    of_ids, hidden_ids = [*of], [*ignored, NODATA]
    change = np.isin(before, of_ids).astype(np.uint8) * LOST + np.isin(after, of_ids).astype(np.uint8) * GAINED
    hidden = np.isin(before, hidden_ids) | np.isin(after, hidden_ids)
    return np.where(hidden, NODATA, change).astype(np.uint8)


def change_labels(what: str) -> tuple[ClassLabel, ...]:
    """Return the labels of the change raster for classes that are called `what`."""
    texts = (f"no {what}", f"{what} lost", f"{what} gained", f"{what} at both dates")
    return tuple(ClassLabel(id=i, name=text, colour=_COLOURS[i]) for i, text in enumerate(texts))


@dataclass(frozen=True, slots=True)
class ChangeOutputs:
    """Writer of the change between an earlier class map and that of a set of rasters."""

    #: The earlier class map: a closed uint8 raster on the same grid.
    before: Path
    classes: WantedClasses
    wanted: frozenset[str]
    polygons: PolygonRequest

    def add(self, rasters: RasterSet) -> tuple[dict[str, Any], list[str]]:
        """Add the artifacts to a set whose raster `classes` is closed.

        Return their entry of the statistics, and notes for its reader.
        """
        scene, of, labels = rasters.scene, self.classes, change_labels(self.classes.name)
        area = pixel_area(scene.crs, scene.transform, scene.height, scene.width)
        counts, pairs = ClassCounts(area), _Pairs(area)
        rasters.open("change", 1).label_classes(labels, f"change of {of.name}")
        for box, (earlier, later) in scratch_rows([self.before, rasters.path("classes")]):
            change = change_of(earlier, later, of.of, of.ignored)
            counts.add(counts.of(change, box))
            pairs.add(earlier, later, box)
            rasters.write_one("change", change[None], box)
        rasters.close()
        found = {
            **of.to_json(),
            **counts.to_json(labels, scene.width * scene.height),
            "transitions": pairs.to_json(of.labels),
        }
        preview, cog = "change.png" if "preview" in self.wanted else None, bool(self.wanted & _WITH_COG)
        add_class_raster(rasters, "change", labels, preview=preview, cog=cog, hidden=(ABSENT,))
        notes = self._notes(found["transitions"], labels[ABSENT].name)
        if "polygons" in self.wanted:
            found["polygons"] = add_polygons(rasters, "change", labels, area, self.polygons, without=ABSENT)
            notes += found["polygons"]["notes"]
        return found, notes

    def _notes(self, transitions: Sequence[Mapping[str, Any]], absent: str) -> list[str]:
        """Return a note on the classes outside `of` that occur, unless the request says which of them to ignore."""
        seen = {pair[date] for pair in transitions for date in ("before", "after")}
        others = self.classes.undecided(seen)
        if not others:
            return []
        said = f"The change counts these classes as {absent!r}: {others}."
        hint = "If some of them hide the ground, as clouds do, name them in `change.ignore`; if none does, give []."
        return [f"{said} {hint}"]


class _Pairs:
    """Pixels and area of each pair of classes, before and after."""

    def __init__(self, area: PixelArea | None) -> None:
        self._area = area
        self._pixels = np.zeros(_SIDE**2, dtype=np.int64)
        self._m2 = np.zeros(_SIDE**2)

    def add(self, before: Ids, after: Ids, box: Box) -> None:
        """Count the pairs of a box."""
        pairs = (before.astype(np.int64) * _SIDE + after).ravel()
        self._pixels += np.bincount(pairs, minlength=_SIDE**2)
        if self._area is not None:
            self._m2 += np.bincount(pairs, weights=self._area.of(box).ravel(), minlength=_SIDE**2)

    def to_json(self, labels: Sequence[ClassLabel]) -> list[dict[str, Any]]:
        """Return the pairs of classes that occur."""
        found = []
        for before in labels:
            for after in labels:
                at = before.id * _SIDE + after.id
                if self._pixels[at]:
                    m2 = float(self._m2[at]) if self._area else np.nan
                    found.append(
                        {
                            "before": before.name,
                            "after": after.name,
                            "pixels": int(self._pixels[at]),
                            "area_m2": round(m2, 3) if np.isfinite(m2) else None,
                        }
                    )
        return found
