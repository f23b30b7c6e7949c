"""Runners in model processes: passes of a batch runner where nothing else needs the interpreter."""
