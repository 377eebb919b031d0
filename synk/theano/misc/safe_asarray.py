"""`theano.misc.safe_asarray`: also ``theano._asarray``."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["_asarray"]


def _asarray(a: Any, dtype: Any, order: Any = None) -> np.ndarray:
    """Return ``numpy.asarray(a, dtype, order)``; "floatX" is a dtype as well."""
    if isinstance(dtype, str) and dtype == "floatX":
        from ..configuration import config

        dtype = config.floatX
    return np.asarray(a, dtype=dtype, order=order)
