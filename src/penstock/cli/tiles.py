"""`penstock tiles`: map tiles of the service's rasters."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.options import DEFAULT_URL, Url, host_and_port, listen, needing


def tiles(
    http: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address on which to listen.")] = "127.0.0.1:8085",
    url: Url = DEFAULT_URL,
) -> None:
    """Draw map tiles (XYZ, TileJSON) of the rasters of jobs, for web maps and GIS.

    The service makes signed links to them where its setting `tiles_url` is the address of this process.
    """
    host, port = host_and_port(http, "127.0.0.1:8085")
    with needing("tiles", "drawing tiles", "rio_tiler", "rasterio", "numpy", "PIL", "pyogrio", "shapely"):
        from penstock.maps.tiles import MOST_REQUESTS, tile_app
    listen(tile_app(url), host, port, most=MOST_REQUESTS)
