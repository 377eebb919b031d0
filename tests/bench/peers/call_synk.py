"""Calls of synk functions; the rows lie in shared memory."""

from contextlib import contextmanager

import pytensor.tensor as pt

import synk
from bench import tasks


@contextmanager
def opened(options, place):
    x = pt.matrix("x", dtype="float32")
    with synk.session(options.ranks):
        empty = synk.function([], [])
        total = synk.function([x], (x.sum(), "sum"))
        rows = synk.data(tasks.array(options))
        yield tasks.questions(empty, lambda: total(rows))
