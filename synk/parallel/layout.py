"""Which arguments of a call are rows, told from their shapes.

A wrong guess costs speed alone, never numbers: whatever is scattered, the outputs are
those of all rows (`compiler.placement`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

MOST = 3
"""Layouts of one call that are looked at."""


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of an argument, fast where it is an array or a number."""
    try:
        shape: tuple[int, ...] = value.shape
        return shape
    except AttributeError:
        return () if isinstance(value, int | float) else np.shape(value)


def layouts(
    shapes: Sequence[tuple[int, ...]], can_be_rows: Sequence[bool]
) -> list[tuple[int, ...]]:
    """Return the sets of arguments that may be the rows of a call, likely ones first.

    Those of one first length are scattered together. Most arguments that have a row
    each have it for the same things; of lengths that as many have, the longest is more
    work to share.

    >>> layouts([(100, 5), (5,), (100,)], [True] * 3)
    [(0, 2), (1,)]
    """
    lengths = [
        shape[0] if may and shape and shape[0] > 1 else 0
        for shape, may in zip(shapes, can_be_rows, strict=True)
    ]
    counted = Counter(filter(None, lengths))
    likely = sorted(counted, key=lambda length: (-counted[length], -length))
    return [
        tuple(i for i, each in enumerate(lengths) if each == length)
        for length in likely[:MOST]
    ]
