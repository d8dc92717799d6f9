"""Language models: from a checkpoint to a program, and from a program to text."""
