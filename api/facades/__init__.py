"""Facades: other APIs over the same jobs."""
