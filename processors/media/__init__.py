"""Containers of audio and video: opening them, and checking that they are complete."""
