"""Functions as models: what a user's file imports, and the process that runs it.

The modules of this package need the standard library only, and numpy for arrays: they run in any environment.
"""
