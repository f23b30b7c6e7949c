"""Video processors: image networks run on sampled frames."""
