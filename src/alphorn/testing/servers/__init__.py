"""Message servers and work processes under faults: the simulator's kind `servers`."""
