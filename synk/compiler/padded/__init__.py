"""Graphs for more rows than are real: the copies of rows count for nothing."""

from .padder import CannotPad, Padder
from .states import Padded

__all__ = ["CannotPad", "Padded", "Padder"]
