"""IO processes: run a worker's processors in isolation, so that a decoder's fault ends one attempt and nothing else."""
