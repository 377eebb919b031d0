"""Log-densities by ranks beside PyMC's own."""

import os
import time
from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
from own_ops import OfFunction
from pytensor.scalar import UnaryScalarOp, same_out
from pytensor.tensor.elemwise import Elemwise

import synk

MODE = "FAST_COMPILE"
GIVEN = {"ravel_inputs": True, "mode": MODE}


def density(model: pm.Model):
    """Return a model's density by ranks, of which none is computed serially."""
    made = synk.pymc.logp_dlogp(model, mode=MODE)
    assert made.rows
    assert not made.refused
    return made


def plain(model: pm.Model) -> Callable:
    """Return PyMC's function of the ravelled point."""
    with model:
        made = model.logp_dlogp_function(**GIVEN)
    return lambda point: made([point], extra_vars={})


def groups_of(idata) -> list[str]:
    """Return the groups of what was sampled, of any ArviZ."""
    groups = idata.groups
    return sorted(groups() if callable(groups) else groups)


def points(start: np.ndarray, many: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [start, *(start + 0.4 * rng.normal(size=(many - 1, len(start))))]


def assert_equal(
    by_ranks: Callable, by_pymc: Callable, at: Sequence[np.ndarray], rtol: float = 1e-12
) -> None:
    """Compare log-densities and gradients at points; some of them must be finite."""
    finite = 0
    for point in at:
        (logp, gradient), (expected, serial) = by_ranks(point), by_pymc(point)
        if not np.isfinite(expected):
            np.testing.assert_array_equal(logp, expected)
            continue
        finite += 1
        np.testing.assert_allclose(logp, expected, rtol=rtol)
        scale = np.abs(serial).max()
        np.testing.assert_allclose(gradient, serial, rtol=0, atol=rtol * scale)
    assert finite > len(at) / 2


def assert_equal_on_ranks(
    pairs: Sequence[tuple], ranks: Sequence[int] = (1, 3), rtol: float = 1e-11
) -> None:
    """Compare densities with PyMC's, all of them in one session of each size."""
    for size in ranks:
        with synk.session(size):
            for by_ranks, by_pymc in pairs:
                assert_equal(by_ranks, by_pymc, points(by_ranks.start), rtol)


MASTER = os.getpid()


class Same(OfFunction):
    def compute(self, x):
        self.before(x)
        return x.copy()

    def before(self, value) -> None:
        """Do something first."""

    def pullback(self, inputs, outputs, cotangents):
        return list(cotangents)


class _SlowOfMarked(UnaryScalarOp):
    """Gives its operand back, and takes its time for large ones."""

    def impl(self, x):
        if x > MARKED / 2:
            time.sleep(5e-3)
        return x

    pullback = L_op = Same.pullback


MARKED = 1e6


def slow_rows(values):
    """Return values of rows, of which each thousandth takes its time in each call.

    So ranks are faster on any machine.
    """
    marks = np.where(np.arange(values.type.shape[0]) % 1000 == 500, MARKED, 0.0)
    return Elemwise(_SlowOfMarked(same_out))(values + marks) - marks


class OnlyHere(Same):
    """Computes in the script's process; elsewhere there is an error.

    `when` says what fails: it is "called", "later" (for values beyond 1), "compiled" or
    "sent", or the rank "dies".
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
