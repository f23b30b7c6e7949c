"""IO processes: where a worker runs its processors, so that what a decoder does ends one attempt and nothing else."""
