"""Processors of video: frames in, an image network's answer to each, and a video of them out."""
