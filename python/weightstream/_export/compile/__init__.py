"""What ExecuTorch calls: the partitioner and the backend, down to one AOTInductor compilation and its record."""
