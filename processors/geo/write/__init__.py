"""Writing results: COGs, polygons, statistics and STAC items."""
