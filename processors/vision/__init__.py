"""Processors of images."""
