"""Processors of conversations about pictures."""
