"""Graphs for more rows than are real: the copies of rows count for nothing."""

from .lying import Padded
from .padder import CannotPad, Padder

__all__ = ["CannotPad", "Padded", "Padder"]
