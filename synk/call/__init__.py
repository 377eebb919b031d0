"""What a call of a function does, in the master and on every rank."""
