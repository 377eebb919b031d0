"""Models of so few data that ranks need not be thought of: found without their density.

To have ranks, and to find out what they would share, takes some 0.1 s, which is much of
the time in which such a model is sampled.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors


def rows_if_tiny(model: Any, few: float) -> int | None:
    """Return how many rows a model has; None unless its numbers are few.

    Counted are those of the data and of the free variables, as far as types tell.

    Parameters
    ----------
    model : pymc.Model
    few : float
        How many at the most.
    """
    found: set[Any] = set()
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    for var in ancestors([*values, *model.observed_RVs, *model.potentials]):
        if isinstance(var, (Constant, SharedVariable)):
            found.add(var)
    shapes = [_shape(var) for var in found]
    shapes += [var.type.shape for var in model.value_vars]
    if any(length is None for shape in shapes for length in shape):
        return None
    if sum(math.prod(shape) for shape in shapes) > few:
        return None
    seen = [np.shape(_value(var)) for var in values]
    return max((shape[0] for shape in seen if shape), default=0)


def _value(var: Any) -> Any:
    """Return what a variable that holds something holds; of others nothing is known."""
    if isinstance(var, SharedVariable):
        return var.get_value(borrow=True)
    return var.data if isinstance(var, Constant) else 0


def _shape(var: Any) -> tuple[int, ...]:
    value = _value(var)
    return np.shape(value) if isinstance(value, (np.ndarray, np.generic, float)) else ()
