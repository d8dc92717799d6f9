"""The shared library: its bindings, errors, tensors and GPUs; and lines of progress. Imports no other room."""
