"""`penstock features`: the polygons of the service's results by OGC API - Features."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import DEFAULT_URL, Url, host_and_port, listen, needing


def features(
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address on which to listen.")] = "127.0.0.1:8086",
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Address under which clients reach it, used in links.")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Serve the polygons of results by OGC API - Features, for QGIS and GDAL: each request with its own API key."""
    host, port = host_and_port(http, "127.0.0.1:8086")
    with needing("geo", "reading polygons", "rasterio", "numpy", "PIL", "pyogrio", "shapely", "pyproj"):
        from penstock.maps.features import MOST_REQUESTS, feature_app
    listen(feature_app(url, public_url or f"http://{http}", [host]), host, port, most=MOST_REQUESTS)
