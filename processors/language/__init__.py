"""Processors of text: generation and embedding."""
