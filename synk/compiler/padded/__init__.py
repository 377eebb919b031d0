"""Graphs for more rows than are real: `walk` says how, the others Op by Op."""

from . import (  # noqa: F401  rules
    draws,
    indexing,
    inner,
    products,
    rowwise,
    scans,
    shapes,
    sizes,
)
from .walk import CannotPad, Padded, Padder

__all__ = ["CannotPad", "Padded", "Padder"]
