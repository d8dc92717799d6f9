"""From a model to its two files: what users call, and what writes the files."""
