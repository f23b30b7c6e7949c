"""The image generation processor, for diffusion models."""
