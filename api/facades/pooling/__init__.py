"""vLLM's `/pooling` for models with an IO processor."""
