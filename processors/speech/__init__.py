"""Processors of speech."""
