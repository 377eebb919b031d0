"""Calls of plain PyTensor functions, for comparison: nothing is parallel."""

from contextlib import contextmanager

import pytensor
import pytensor.tensor as pt

from bench import tasks


@contextmanager
def opened(options, place):
    x = pt.matrix("x", dtype="float32")
    empty = pytensor.function([], [])
    total = pytensor.function([x], x.sum())
    rows = tasks.array(options)
    yield tasks.questions(empty, lambda: total(rows))
