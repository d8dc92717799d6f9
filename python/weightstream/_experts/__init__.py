"""Layers of experts whose weights are in a cache of slots on the GPU."""
