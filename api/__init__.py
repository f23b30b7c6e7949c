"""Ways in: the HTTP API. Thin: it validates, calls the job store, and answers; it loads no numerical library."""
