"""Shared-memory segments, and the arithmetic of rows: what lies where, and for whom."""
