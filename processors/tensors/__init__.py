"""The processor of raw tensors."""
