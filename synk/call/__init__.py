"""Calls of functions: in the master, on every rank, and on other nodes."""
