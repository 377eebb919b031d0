"""Combining values across ranks: one file for each transport, and the reduce ops."""
