"""Processors of pages: pictures of text."""
