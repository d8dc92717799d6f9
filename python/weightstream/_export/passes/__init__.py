"""From a program to a program: what happens to its graph before it is compiled."""
