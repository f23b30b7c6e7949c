"""OGC API - Processes 1.0 under `/ogc`."""
