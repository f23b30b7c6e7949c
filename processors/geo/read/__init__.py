"""Reading scenes: files, bands, radiometry and rows of pixels."""
