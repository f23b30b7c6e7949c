"""vLLM's IO-processor plugins, unmodified, as processors."""
