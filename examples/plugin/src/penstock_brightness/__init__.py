"""An IO processor for Penstock: how bright pictures are."""
