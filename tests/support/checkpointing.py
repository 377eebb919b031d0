"""Shared variables with values, for the tests of checkpoints."""

from __future__ import annotations

import numpy as np
import pytensor
from reference import assert_same, values_of

import synk


def shared(value, name=None, **options):
    return pytensor.shared(value, name=name, **options)


def a_few() -> dict[str, np.ndarray]:
    """Return values of several kinds: a small file has all that a large one has."""
    return {
        "w": values_of("float32", (3, 2), 1),
        "n": np.int64(-5)[...],
        "none": np.zeros((0, 3), bool),
    }


def make(values, rng: int | None = None) -> list:
    made = [shared(value, name) for name, value in values.items()]
    if rng is not None:
        made.append(shared(np.random.default_rng(rng), "rng"))
    return made


def overwrite(variables) -> list:
    """Give variables other values, on all ranks if forked; return these."""
    others = []
    for var in variables:
        value = var.get_value()
        if isinstance(value, np.random.Generator):
            value = np.random.default_rng(99)
        else:
            value = value ^ True if value.dtype == bool else value + 3
        others.append(value)
    if synk.is_forked():
        synk.broadcast(variables, others)
    for var, other in zip(variables, others, strict=True):
        var.set_value(other)
    return others


def check_unchanged(variables, others):
    for var, other in zip(variables, others, strict=True):
        if isinstance(other, np.random.Generator):
            state = var.get_value().bit_generator.state
            assert state == other.bit_generator.state
        else:
            assert_same(var.get_value(), other, 0)
