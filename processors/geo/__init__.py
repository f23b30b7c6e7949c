"""Raster segmentation: a scene in, a georeferenced class map out."""
