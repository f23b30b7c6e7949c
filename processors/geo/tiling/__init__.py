"""Tiling: the plan of a scene, its tiles, and stitching."""
