"""Processors of pages: images of documents."""
