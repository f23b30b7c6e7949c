"""The runner `function`: a user's Python function in a process of its own."""
