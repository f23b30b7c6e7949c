"""Raw tensors as they come out of other programs."""
