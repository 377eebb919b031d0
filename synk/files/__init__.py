"""Training rows in files that are larger than memory, such as ImageNet in batches.

A thread reads the files of the next steps while ranks train.
"""

from .make import arrays, images, table
from .order import Part
from .rows import Rows

__all__ = ["Part", "Rows", "arrays", "images", "table"]
