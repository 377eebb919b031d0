"""A fix for JAX mode: values have the dtypes that a graph declares.

Seen with PyTensor 3.0.7 and JAX 0.10.2; ``test_gpu_jax_mode.py`` compares dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def of_its_dtype(funcify: Callable) -> Callable:
    """Values of the dtypes that a graph declares: sums of float32, products with ints.

    PyTensor adds up float32 as float64, and returns that in JAX. JAX itself makes
    float32 of float32 times int32, and of the logarithm of int32; PyTensor float64. A
    convolution, for one, then gets arguments of two dtypes.
    """

    def convert(op: Any, node: Any = None, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        if node is None:
            return function
        dtypes = [np.dtype(var.type.dtype) for var in node.outputs]

        def call(*given: Any) -> Any:
            found = function(*given)
            fit = [
                value
                if getattr(value, "dtype", dtype) == dtype
                # Computed once more, with all the digits.
                else _listed(function(*_widened(given, dtype)))[i].astype(dtype)
                for i, (value, dtype) in enumerate(
                    zip(_listed(found), dtypes, strict=True)
                )
            ]
            return tuple(fit) if isinstance(found, (tuple, list)) else fit[0]

        return call

    return convert


def _listed(found: Any) -> Sequence[Any]:
    """Return an Op's values, of which one may come by itself."""
    return found if isinstance(found, (tuple, list)) else [found]


def _widened(values: Sequence[Any], dtype: np.dtype) -> list[Any]:
    """Return values with whole numbers made floats, if it is floats that are wanted."""
    return [
        value.astype(dtype)
        if dtype.kind == "f" and getattr(value, "dtype", dtype).kind in "iu"
        else value
        for value in values
    ]
