"""Products of many rasters in one file: NetCDF, HDF5, zipped SAFE and zipped Zarr."""
