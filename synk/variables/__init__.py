"""Data and shared variables, which outlive calls: collectives, checkpoints."""
