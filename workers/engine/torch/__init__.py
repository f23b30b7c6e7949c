"""The runner `torch`: exported programs and networks that Penstock knows."""
