"""IO processors: turn a job's input into prompts for the engine, and the engine's outputs into a result."""
