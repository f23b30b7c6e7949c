"""STAC 1.1 item of a job's results: footprint, assets, and provenance.

The item contains no time of processing, so that the same request gives the same item. It names only the extensions of
which it has fields: the raster extension's schema rejects items without them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import numpy as np
import pystac
import shapely

import penstock
from penstock.models import Model
from penstock.processors.geo.options import NODATA, ClassLabel
from penstock.processors.geo.read.provenance import Provenance
from penstock.processors.geo.read.raster import Scene
from penstock.processors.geo.write.artifacts import SceneArtifact
from penstock.processors.geo.write.footprint import footprint
from penstock.processors.geo.write.lonlat import in_the_crs, lonlat_bounds

ITEM_TYPE = "application/geo+json"
#: Artifact name of the model's STAC item.
MODEL_ITEM = "model.json"

_EXTENSIONS = "https://stac-extensions.github.io"
#: Version 1.1 also in STAC 1.1, because the MLM extension requires it. Its classes are valid in version 2.0, too.
CLASSIFICATION = f"{_EXTENSIONS}/classification/v1.1.0/schema.json"
FILE = f"{_EXTENSIONS}/file/v2.1.0/schema.json"
PROCESSING = f"{_EXTENSIONS}/processing/v1.2.0/schema.json"
PROJECTION = f"{_EXTENSIONS}/projection/v2.0.0/schema.json"
RASTER = f"{_EXTENSIONS}/raster/v2.0.0/schema.json"
#: Extensions by the prefix of their fields.
_BY_PREFIX = {
    "classification": CLASSIFICATION,
    "file": FILE,
    "processing": PROCESSING,
    "proj": PROJECTION,
    "raster": RASTER,
}

#: Characters that addresses must not contain.
_NOT_IN_ADDRESSES = re.compile(r'[\x00-\x20<>"{}|\\^`]')


def stac_item(model: Model, scene: Scene, provenance: Provenance, artifacts: Sequence[SceneArtifact]) -> dict[str, Any]:
    """Return the STAC item with an asset for each artifact; links to artifacts are relative to the item.

    The provenance must have a time: STAC requires it. Several dates are an interval. Geometry and bbox are None for a
    scene without a usable georeference.
    """
    outline = footprint(scene)
    first, last = min(provenance.acquired), max(provenance.acquired)
    item = pystac.Item(
        id=_id(model, provenance),
        geometry=json.loads(shapely.to_geojson(outline)) if outline else None,
        bbox=list(lonlat_bounds(outline)) if outline else None,
        datetime=first.astimezone(UTC) if first == last else None,
        properties={
            **({} if first == last else {"start_datetime": _text(first), "end_datetime": _text(last)}),
            "title": model.title,
            **_projection(scene),
            "processing:software": {"penstock": penstock.__version__},
            "processing:lineage": _lineage(model, provenance),
        },
    )
    for artifact in artifacts:
        item.add_asset(artifact.name, _asset(artifact))
    for reference in dict.fromkeys(provenance.items):
        if address := public_address(reference):
            item.add_link(pystac.Link("derived_from", address, ITEM_TYPE))
    for source in provenance.sources:
        if address := public_address(source.reference):
            etag = {"etag": source.etag} if source.etag else None
            item.add_link(pystac.Link("derived_from", address, extra_fields=etag))
    item.add_link(pystac.Link("mlm:model", f"./{MODEL_ITEM}", ITEM_TYPE, title=model.title))
    document = item.to_dict(include_self_link=False, transform_hrefs=False)
    return document | {"stac_extensions": _extensions(document)}


def classes_fields(labels: Sequence[ClassLabel]) -> dict[str, Any]:
    """Return the asset fields of a class raster."""
    fields = {"data_type": "uint8", "nodata": NODATA, "bands": [{"name": "classes"}]}
    return {**fields, "classification:classes": stac_classes(labels)}


def stac_classes(labels: Sequence[ClassLabel]) -> list[dict[str, Any]]:
    """Return the classes in the format of the classification extension."""
    return [
        {
            "value": label.id,
            "name": machine_name(label.name),
            "title": label.name,
            "description": label.name,
            "color_hint": label.colour[1:],
        }
        for label in labels
    ]


def bands_fields(names: Sequence[str], dtype: str, *, scale: float = 1) -> dict[str, Any]:
    """Return the asset fields of a raster of probabilities or quantities."""
    fields: dict[str, Any] = {"data_type": dtype, "nodata": NODATA if dtype == "uint8" else "nan"}
    fields["bands"] = [{"name": machine_name(name), "description": name} for name in names]
    return fields if scale == 1 else fields | {"raster:scale": scale}


def machine_name(name: str) -> str:
    """Return a name of letters, digits, `-` and `_`, as required by STAC."""
    return re.sub(r"[^0-9A-Za-z_-]+", "-", name).strip("-") or "class"


def multihash(sha256: str) -> str:
    """Return a SHA-256 as a multihash in hexadecimal digits: 12 is the code of the algorithm, 20 the length."""
    return f"1220{sha256}"


def public_address(reference: str) -> str | None:
    """Return the address of a media reference for other people; None if it has none.

    Uploads and local files have none. Neither has an address with a query or a password: it may be signed, and would
    lead nowhere without its signature.
    """
    if not reference.startswith(("https://", "s3://")):
        return None
    scheme, host, path, query, _ = urlsplit(reference)
    if "@" in host or query:
        return None
    return _NOT_IN_ADDRESSES.sub(lambda found: quote(found[0]), urlunsplit((scheme, host, path, "", "")))


def _extensions(item: Mapping[str, Any]) -> list[str]:
    """Return the extensions of which the properties, the assets or their bands have fields."""
    prefixes = {name.partition(":")[0] for name in _field_names(item)}
    return [extension for prefix, extension in _BY_PREFIX.items() if prefix in prefixes]


def _field_names(item: Mapping[str, Any]) -> Iterator[str]:
    yield from item["properties"]
    for asset in item["assets"].values():
        yield from asset
        for band in asset.get("bands", ()):
            yield from band


def _lineage(model: Model, provenance: Provenance) -> str:
    """Return how the results were made, as a sentence without a full stop."""
    used = provenance.used
    earlier, dates = used.get("before", {}), used.get("dates", ())
    mosaics = [mosaic for mosaic in (*used.get("mosaics", ()), *earlier.get("mosaics", ())) if mosaic is not None]
    return ", ".join(
        (
            f"{model.name} {model.revision} applied to {_counted(len(provenance.sources), 'file')}",
            *(f"a mosaic of {_counted(len(mosaic['scenes']), 'scene')}" for mosaic in mosaics),
            *(["cut to an area"] if "area" in (dates[0] if dates else used) else []),
            *(["with the change since an earlier scene"] if earlier else []),
            *([f"as a series of {_counted(len(dates), 'date')}"] if dates else []),
        )
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _text(time: datetime) -> str:
    return pystac.utils.datetime_to_str(time.astimezone(UTC))


def _id(model: Model, provenance: Provenance) -> str:
    parts = [model.name, model.revision, *((s.reference, s.etag) for s in provenance.sources), provenance.used]
    return f"{model.name}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def _projection(scene: Scene) -> dict[str, Any]:
    fields: dict[str, Any] = {"proj:shape": [scene.height, scene.width]}
    if scene.transform is not None:
        corners = in_the_crs(np.array([shapely.box(0, 0, scene.width, scene.height)]), scene.transform)
        fields |= {"proj:transform": list(scene.transform)[:6], "proj:bbox": shapely.bounds(corners)[0].tolist()}
    crs = scene.crs if scene.transform is not None else None
    code = crs.to_authority() if crs is not None else None
    fields["proj:code"] = ":".join(code) if code else None
    if crs is not None and not code:
        fields["proj:wkt2"] = crs.to_wkt(version="WKT2_2019")
    return fields


def _asset(artifact: SceneArtifact) -> pystac.Asset:
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
