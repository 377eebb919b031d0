"""Ops that take their time, or to fail, in some of the processes."""

from __future__ import annotations

import os
import time

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar import UnaryScalarOp, same_out
from pytensor.tensor.elemwise import Elemwise

MASTER = os.getpid()


class Same(Op):
    """Gives its operand back."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        self.before(inputs[0])
        outputs[0][0] = inputs[0].copy()

    def before(self, value) -> None:
        """Do something first."""

    def pullback(self, inputs, outputs, cotangents):
        return list(cotangents)

    L_op = pullback  # its name before PyTensor 3


class _SlowOfMarked(UnaryScalarOp):
    """Gives its operand back, and takes its time for large ones."""

    def impl(self, x):
        if x > MARKED / 2:
            time.sleep(5e-3)
        return x

    def pullback(self, inputs, outputs, cotangents):
        return list(cotangents)

    L_op = pullback


MARKED = 1e6


def slow_rows(values):
    """Return values of rows, of which each thousandth takes its time in each call.

    So ranks are faster on any machine.
    """
    marks = np.where(np.arange(values.type.shape[0]) % 1000 == 500, MARKED, 0.0)
    return Elemwise(_SlowOfMarked(same_out))(values + marks) - marks


class SlowElsewhere(Same):
    """Takes its time in all ranks but the script's process: they are slower."""

    def before(self, value) -> None:
        if os.getpid() != MASTER:
            time.sleep(0.1)


class OnlyHere(Same):
    """Computes in the script's process; elsewhere there is an error.

    Parameters
    ----------
    when : {"called", "later", "compiled", "sent", "dies"}
        What fails, "later" in calls for values beyond 1.
    """

    __props__ = ("when",)

    def __init__(self, when: str) -> None:
        self.when = when

    def before(self, value) -> None:
        if os.getpid() == MASTER:
            return
        if self.when == "dies":
            os._exit(1)
        if self.when == "called":
            raise AssertionError("an operand\nof ours")
        if self.when == "later" and abs(value) > 1:
            raise NotImplementedError("so far out")

    def prepare_node(self, node, storage_map, compute_map, impl):
        if self.when == "compiled" and os.getpid() != MASTER:
            raise NotImplementedError("no code for this")

    def __reduce__(self):
        if self.when == "sent":
            raise TypeError("stays here")
        return type(self), (self.when,)
