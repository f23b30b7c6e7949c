"""The object store: objects in an S3 bucket or a folder, behind one protocol (`base.py`)."""
