"""What runs: exported programs, and the memory of a device for eager code."""
