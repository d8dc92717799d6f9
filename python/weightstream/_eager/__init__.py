"""Eager modules whose weights stay in host memory."""
