"""IO processors: raw data in, prompts to the engine, outputs back, a finished result out."""
