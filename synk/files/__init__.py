"""Rows that lie in files, more than memory holds: ImageNet in batches, say.

A thread reads the files of the next steps while ranks train.
"""

from .make import arrays, images, table
from .order import Part
from .rows import Rows

__all__ = ["Part", "Rows", "arrays", "images", "table"]
