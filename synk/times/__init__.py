"""Measured times on a rank: phases of calls, events of a trace, compile notices."""
