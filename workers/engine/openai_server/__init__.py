"""The runner `openai-server`."""
