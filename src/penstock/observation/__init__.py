"""Observation: logs, their listeners, traces and spans."""
