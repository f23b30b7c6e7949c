"""Models on this machine without a service: `penstock.Engine`, `penstock run` and `penstock models check`."""
