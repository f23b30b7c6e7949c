"""Map tiles of a service's rasters, for web maps and GIS (`penstock tiles`).

gdal        GDAL's settings of this process
drawing     a raster's look, and its tiles as PNG
server      the HTTP addresses: it holds no key and no secret, and asks the API which file a signed link is for
"""

from penstock.tiles import gdal

__all__ = ["gdal"]
