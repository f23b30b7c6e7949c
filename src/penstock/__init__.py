"""Penstock: inference as a job queue, for models whose answer is more than text."""

from importlib.metadata import version

__version__ = version("penstock")
