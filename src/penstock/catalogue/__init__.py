"""The model catalogue: the shipped records, and the reader of catalogues."""
