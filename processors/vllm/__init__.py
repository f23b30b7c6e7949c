"""The processor that runs vLLM's IO-processor plugins unmodified."""
