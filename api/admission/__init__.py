"""Admission control: rejects over-limit submissions before their bodies are read."""
