"""Intake: the checks between a request and the store, and the guard that fetches what users name."""
