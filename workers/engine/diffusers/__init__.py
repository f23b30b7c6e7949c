"""The runner `diffusers`: images out of noise, step by step."""
