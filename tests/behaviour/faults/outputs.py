"""Faults of what ranks compute and print."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytensor.tensor as pt
from deaths import write_much
from moments import computing
from processes import PY
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from trial import Trial
from work import Wrong, X, Y

import synk


class Changed(Op):
    """Returns its input, but on rank 1 something else made of it."""

    __props__ = ("change",)

    def __init__(self, change: Callable) -> None:
        self.change = change

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        (x,) = inputs
        outputs[0][0] = self.change(x) if synk.rank() == 1 else x.copy()


def with_a_column_more(x):
    return np.hstack([x, x[:, :1]])


def with_nan(x):
    return np.where(x == x[0, 0], np.nan, x)


def of_another_shape(trial: Trial) -> Callable[[], object]:
    x = pt.dmatrix("x")
    gather = synk.function([x], (Changed(with_a_column_more)(x), "gather"), mode=PY)
    trial.fork()
    return lambda: gather(X)


def variable_of_another_shape(trial: Trial) -> Callable[[], object]:
    trial.fork()
    synk.set_value(1, trial.work.ones, np.ones(6))

    def call() -> None:
        try:
            synk.all_reduce(trial.work.ones)
        finally:
            synk.broadcast(trial.work.ones, np.ones(5))

    return call


def not_a_number(trial: Trial) -> Callable[[], object]:
    x = pt.dmatrix("x")
    total = synk.function([x], (Changed(with_nan)(x).sum(), "sum"), mode=PY)
    trial.fork()

    def call() -> None:
        if not np.isnan(total(X)):
            raise Wrong("a NaN on rank 1 is lost")

    return call


def not_a_number_is_looked_for(trial: Trial) -> Callable[[], object]:
    """A NaN in the rows of rank 1, where the call is to look for such."""
    rows = X.copy()
    rows[12, 1] = np.nan
    trial.fork()
    return lambda: trial.work.step_(rows, Y, check="finite")


def much_output(trial: Trial) -> Callable[[], object]:
    """What a rank prints goes where the script's own output goes, all of it."""
    path = Path(trial.work.folder) / "stdout"
    kept, file = os.dup(1), os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.close(file)
    prepared = computing(write_much)(trial)

    def call() -> None:
        prepared()
        synk.close()
        os.dup2(kept, 1)
        os.close(kept)
        assert path.stat().st_size == 10 << 20
        trial.fork()

    return call
