"""Processors of photographs and other pictures."""
