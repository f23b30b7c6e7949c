"""The HTTP API: validates requests, calls the job store, and answers. No numerical library is imported."""
