"""vLLM's `/score`, `/rerank` and `/classify`, the second also as Cohere and Jina have it."""
