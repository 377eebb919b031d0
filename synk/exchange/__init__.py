"""Training rules on ranks: the centre in shared memory, and exchanges with it."""
