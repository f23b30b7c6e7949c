"""A double of vLLM's interface."""

__version__ = "0.32.0"
