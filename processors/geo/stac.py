"""The STAC 1.1 item of a job's results: where they lie, what each file is, what they were made of.

Written without clocks, so that the same request gives the same item.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
import pystac
import shapely

import penstock
from penstock.models import Model
from penstock.processors.geo.artifacts import Artifact
from penstock.processors.geo.lonlat import Geometries, ToLonLat, Unplaceable, in_the_crs, lonlat_bounds
from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.provenance import Provenance
from penstock.processors.geo.raster import Scene

ITEM_TYPE = "application/geo+json"
#: The name under which the model's own item lies beside the results.
MODEL_ITEM = "model.json"

_EXTENSIONS = "https://stac-extensions.github.io"
CLASSIFICATION = f"{_EXTENSIONS}/classification/v2.0.0/schema.json"
FILE = f"{_EXTENSIONS}/file/v2.1.0/schema.json"
PROCESSING = f"{_EXTENSIONS}/processing/v1.2.0/schema.json"
PROJECTION = f"{_EXTENSIONS}/projection/v2.0.0/schema.json"
RASTER = f"{_EXTENSIONS}/raster/v2.0.0/schema.json"

#: STAC wants a time or an interval: this one says that it is not known, as the MLM extension's examples do.
UNKNOWN_TIME = {"start_datetime": "1900-01-01T00:00:00Z", "end_datetime": "9999-12-31T23:59:59Z"}
_OUTLINE_POINTS = 32


def stac_item(model: Model, scene: Scene, provenance: Provenance, artifacts: Sequence[Artifact]) -> dict[str, Any]:
    """Return the item, with an asset for each artifact; they and the model's item lie beside it.

    Geometry and bbox are None where the scene has no CRS that says where it lies.
    """
    outline = footprint(scene)
    taken = provenance.taken
    item = pystac.Item(
        id=_id(model, provenance),
        geometry=json.loads(shapely.to_geojson(outline)) if outline else None,
        bbox=list(lonlat_bounds(outline)) if outline else None,
        datetime=taken.astimezone(UTC) if taken else None,
        properties={
            **({} if taken else UNKNOWN_TIME),
            "title": model.title,
            **_projection(scene),
            "processing:software": {"penstock": penstock.__version__},
            "processing:lineage": f"{model.name} {model.revision} applied to {len(provenance.sources)} file(s)",
        },
        stac_extensions=[CLASSIFICATION, FILE, PROCESSING, PROJECTION, RASTER],
    )
    for artifact in artifacts:
        item.add_asset(artifact.name, _asset(artifact))
    for source in provenance.sources:
        etag = {"etag": source.etag} if source.etag else None
        item.add_link(pystac.Link("derived_from", _public(source.reference), extra_fields=etag))
    item.add_link(pystac.Link("mlm:model", f"./{MODEL_ITEM}", ITEM_TYPE, title=model.title))
    return item.to_dict(include_self_link=False, transform_hrefs=False)


def footprint(scene: Scene) -> Any | None:
    """Return the scene's outline in EPSG:4326, cut at the antimeridian; None where nobody knows it.

    Only points that change nothing are left out: near a pole whatever else is dropped takes land with it.
    """
    if scene.transform is None:
        return None
    box: Geometries = np.array([shapely.box(0, 0, scene.width, scene.height)])
    placed = in_the_crs(shapely.segmentize(box, max(scene.width, scene.height) / _OUTLINE_POINTS), scene.transform)
    step = float(shapely.length(placed)[0]) / (4 * _OUTLINE_POINTS)
    try:
        return shapely.simplify(ToLonLat(scene.crs, step, step / 100).polygons(placed)[0], 0)
    except Unplaceable:
        return None


def classes_fields(labels: Sequence[ClassLabel]) -> dict[str, Any]:
    """Return the asset fields of a class raster."""
    fields = {"data_type": "uint8", "nodata": NODATA, "bands": [{"name": "classes"}]}
    return {**fields, "classification:classes": stac_classes(labels)}


def stac_classes(labels: Sequence[ClassLabel]) -> list[dict[str, Any]]:
    """Return the classes as the classification extension has them."""
    return [
        {
            "value": label.id,
            "name": machine_name(label.name),
            "title": label.name,
            "color_hint": label.colour[1:],
        }
        for label in labels
    ]


def bands_fields(names: Sequence[str], dtype: str, *, scale: float = 1) -> dict[str, Any]:
    """Return the asset fields of a raster of numbers."""
    fields: dict[str, Any] = {"data_type": dtype, "nodata": NODATA if dtype == "uint8" else "nan"}
    fields["bands"] = [{"name": machine_name(name), "description": name} for name in names]
    return fields if scale == 1 else fields | {"raster:scale": scale}


def machine_name(name: str) -> str:
    """Return a name of letters, digits, `-` and `_`, as STAC wants them."""
    return re.sub(r"[^0-9A-Za-z_-]+", "-", name).strip("-") or "class"


def multihash(sha256: str) -> str:
    """Return a sha256 as a multihash in hexadecimal digits: 12 is the algorithm, 20 its length."""
    return f"1220{sha256}"


def _id(model: Model, provenance: Provenance) -> str:
    parts = [model.name, model.revision, *((s.reference, s.etag) for s in provenance.sources), provenance.used]
    return f"{model.name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _projection(scene: Scene) -> dict[str, Any]:
    fields: dict[str, Any] = {"proj:shape": [scene.height, scene.width]}
    if scene.transform is not None:
        corners = in_the_crs(np.array([shapely.box(0, 0, scene.width, scene.height)]), scene.transform)
        fields |= {"proj:transform": list(scene.transform)[:6], "proj:bbox": shapely.bounds(corners)[0].tolist()}
    if scene.crs is not None and scene.transform is not None:
        code = scene.crs.to_authority()
        fields["proj:code"] = ":".join(code) if code else None
        if not code:
            fields["proj:wkt2"] = scene.crs.to_wkt(version="WKT2_2019")
    return fields


def _asset(artifact: Artifact) -> pystac.Asset:
    fields = {
        **artifact.fields,
        "file:size": artifact.size_bytes,
        "file:checksum": multihash(artifact.sha256),
    }
    return pystac.Asset(
        f"./{artifact.name}",
        title=artifact.title,
        media_type=artifact.media_type,
        roles=list(artifact.roles),
        extra_fields=fields,
    )


def _public(reference: str) -> str:
    """Return a reference without what may be secret in it: the query of a signed address."""
    scheme, host, path, _, _ = urlsplit(reference)
    return urlunsplit((scheme, host, path, "", ""))
