"""Processors of text."""
