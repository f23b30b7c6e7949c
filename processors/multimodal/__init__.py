"""The processor of conversations about images."""
