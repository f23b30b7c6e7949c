"""Server sides of the peers: scripts that run in a peer's own environment and import nothing of Penstock."""
