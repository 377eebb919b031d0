"""What ranks hold between calls: data, shared variables, checkpoints."""
