"""An IO processor and a runner for Penstock: the brightness of pictures."""
