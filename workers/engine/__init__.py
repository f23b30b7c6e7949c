"""The engine: one scheduler per device that composes batches from the prompts of many jobs."""
