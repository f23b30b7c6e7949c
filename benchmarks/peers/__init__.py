"""Penstock beside its peers, with the same work: `python -m benchmarks.peers`."""
