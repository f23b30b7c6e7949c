"""The runner `transformers`: models in the directory format of the Hugging Face hub, one file per kind of task."""
