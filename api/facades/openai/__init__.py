"""OpenAI's API under `/openai/v1`."""
