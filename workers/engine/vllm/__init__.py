"""The runner `vllm`: vLLM's own engine in a process beside the worker."""
