"""Images out of noise."""
