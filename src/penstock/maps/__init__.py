"""Results where people look at them: map tiles (`penstock tiles`) and OGC API Features (`penstock features`).

gdal        GDAL's settings of these processes
relay       questions to the API of the service
drawing     a raster's look, and its tiles as PNG
tiles       the addresses of tiles: they hold no key, and ask the API which file a signed link is for
polygons    the polygons of a FlatGeobuf, by ranges: pages, filters, GeoJSON
features    OGC API Features over the polygons of jobs, each request with its sender's key
"""

from penstock.maps import gdal

__all__ = ["gdal"]
