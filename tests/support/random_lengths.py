"""Random graphs of Ops that take lengths, with what plain PyTensor makes of them.

A graph grows from its inputs: at each step a production takes arrays and counts that
are there, and makes a new one. The counts follow from the number of rows in some way,
or from their values; the arrays have rows, or are what needs all of them at once.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import Rop
from reference import PY

try:
    from pytensor.conditional import ifelse
except ImportError:  # PyTensor before 3.3
    from pytensor.ifelse import ifelse

ROWS = 2, 4, 7
HAS_FLAG = "return_updates" in inspect.signature(pytensor.scan).parameters
PRODUCTIONS: list[Callable[[Graph], Any]] = []


def scan(step, sequences, initial, **options):
    """Scan with one kind of result in all versions of PyTensor."""
    if HAS_FLAG:
        return pytensor.scan(step, sequences, initial, return_updates=False, **options)
    return pytensor.scan(step, sequences, initial, **options)[0]


def inputs_of(rows: int) -> list[np.ndarray]:
    """Return values of the inputs: whole numbers of rows or less among the last."""
    rng = np.random.default_rng(rows)
    floats = rng.normal(size=(rows, 3)), rng.normal(size=rows)
    return [*(array.round(2) for array in floats), rng.integers(0, rows, rows)]


@dataclass(eq=False)
class Term:
    """A variable, and its values in the serial run for each of `ROWS`."""

    var: Any
    values: list[np.ndarray]

    def fits(self, other: Term, ndim: int | None = None) -> bool:
        """Tell whether the first axes of two are as long as one another."""
        shapes = [[v.shape[:ndim] for v in term.values] for term in (self, other)]
        return shapes[0] == shapes[1]


class Graph:
    """Inputs, and terms made so far that have a value for any number of rows."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        x, y, k = pt.matrix("x"), pt.vector("y"), pt.lvector("k")
        self.inputs = [x, y, k]
        self.w = w = pytensor.shared(np.array([0.3, -0.2, 0.5]), "w")
        self.terms: list[Term] = []
        n = x.shape[0]
        for var in (x, y, k, w, x @ w, x.mean(), pt.constant(2)):
            self.add(var)
        for var in (n, y.size, n - 1, n // 2, 2 * n, x.size, (y > 0).sum()):
            self.add(var)
        self.given = len(self.terms)

    @property
    def made(self) -> list[Term]:
        """What productions have made."""
        return self.terms[self.given :]

    def grow(self, steps: int) -> None:
        """Make so many terms, as far as productions find what they take."""
        for _ in range(4 * steps):
            if len(self.made) < steps:
                try:
                    self.add(self.random.choice(PRODUCTIONS)(self))
                except (LookupError, TypeError, ValueError):
                    pass  # nothing fits, or not so

    def add(self, var: Any) -> None:
        """Add a term that is finite and of a moderate size for any number of rows."""
        f = pytensor.function(self.inputs, var, mode=PY, on_unused_input="ignore")
        try:
            with np.errstate(all="ignore"):
                values = [np.asarray(f(*inputs_of(rows))) for rows in ROWS]
        except (ValueError, IndexError, TypeError, AssertionError):
            return
        if all(v.size < 1000 and np.isfinite(v).all() for v in values) and var.ndim < 4:
            self.terms.append(Term(var, values))

    def some(self, fits: Callable[[Term], bool]) -> Term:
        """Choose a term that fits; one that was made as often as one that was given."""
        fitting = [term for term in self.terms if fits(term)]
        made = [term for term in fitting if term in self.made]
        return self.random.choice(
            made if made and self.random.random() < 0.5 else fitting
        )

    def floats(self, *ndims: int, like: Term | None = None, only: int | None = None):
        """Choose floats, as long as others along their first axes."""
        return self.some(
            lambda term: (
                term.var.dtype == "float64"
                and term.var.ndim in (ndims or (1, 2, 3))
                and (like is None or term.fits(like, only))
            )
        )

    def count(self) -> Any:
        """Choose a number that may be a length."""
        return self.some(
            lambda term: (
                term.var.ndim == 0
                and term.var.dtype[:3] == "int"
                and all(0 <= value <= 30 for value in term.values)
            )
        ).var

    def numbers(self) -> Any:
        """Choose a vector of integers."""
        return self.some(lambda t: t.var.ndim == 1 and t.var.dtype == "int64").var

    def of(self, *ways: Callable[[], Any]) -> Any:
        """Choose one of several ways to make something."""
        return self.random.choice(ways)()


def production(function: Callable[[Graph], Any]) -> Callable[[Graph], Any]:
    """Add a production."""
    PRODUCTIONS.append(function)
    return function


@production
def allocated(g: Graph) -> Any:
    count, number, vector = g.count(), g.floats(0).var, g.floats(1).var
    return g.of(
        lambda: pt.alloc(number, count),
        lambda: pt.alloc(vector, count, vector.shape[0]),
        lambda: pt.broadcast_to(vector, (count, vector.shape[0])),
        lambda: pt.zeros((count, 2)),
        lambda: pt.arange(count),
        lambda: pt.arange(1, count + 1) * 1.0,
        lambda: pt.linspace(0, 1, count),
        lambda: pt.eye(count, 3),
        lambda: pt.tri(count, 3),
    )


@production
def counted(g: Graph) -> Any:
    count, other, array = g.count(), g.count(), g.floats().var
    return g.of(
        lambda: array.shape[g.random.randrange(array.ndim)],
        lambda: array.size,
        lambda: count + 1,
        lambda: count // 2,
        lambda: pt.minimum(count, other),
        lambda: count - other,
    )


@production
def taken(g: Graph) -> Any:
    array, count = g.floats().var, g.count()
    return g.of(
        lambda: array[:count],
        lambda: array[count:],
        lambda: array[-count:],
        lambda: array[:count][::-1],
        lambda: array[::-1],
        lambda: array[1:],
        lambda: array[::2],
        lambda: array[count - 1],
        lambda: array[pt.arange(count)],
        lambda: array[g.numbers()],
    )


@production
def put(g: Graph) -> Any:
    term = g.floats()
    array, count, n = term.var, g.count(), term.var.shape[0]
    other = g.floats(array.ndim, like=term, only=1).var
    change = g.of(lambda: pt.set_subtensor, lambda: pt.inc_subtensor)
    rest = [array.shape[i] for i in range(1, array.ndim)]
    zeros = pt.zeros((count, *rest))
    return g.of(
        lambda: change(pt.zeros_like(array)[1:], array[:-1]),
        lambda: change(zeros[:n], array),
        lambda: change(array[:count], 2.0),
        lambda: change(array[:n], other),
        lambda: pt.inc_subtensor(zeros[g.numbers()], array),
    )


@production
def reshaped(g: Graph) -> Any:
    array, count = g.floats().var, g.count()
    shape: tuple = g.of(
        *(lambda: (-1, 2), lambda: (-1, 2, 2), lambda: (2, -1), lambda: (count, -1)),
        *(lambda: (-1, count), lambda: (-1,), lambda: (-1, 1, 3), lambda: (-1, 6)),
    )
    return array.reshape(shape, ndim=len(shape))


@production
def joined(g: Graph) -> Any:
    array, count = g.floats().var, g.count()
    other, n = g.floats(array.ndim).var, array.shape[0]
    return g.of(
        lambda: pt.join(g.random.randrange(array.ndim), array, other),
        lambda: pt.concatenate([g.floats(1).var, pt.zeros(count)]),
        lambda: pt.split(array, pt.stack([count, n - count]), 2, axis=0)[0],
        lambda: pt.tile(array, 2),
        lambda: pt.repeat(array, 2, axis=0),
        lambda: pt.repeat(array, g.numbers(), axis=0),
        lambda: pt.tile(g.floats(1).var[None], (count, 1)),
        lambda: pt.diag(g.floats(1).var),
    )


@production
def along(g: Graph) -> Any:
    array = g.floats().var
    return g.of(
        lambda: pt.cumsum(array, axis=0),
        lambda: pt.sort(array, axis=0),
        lambda: pt.diff(array, axis=0),
        lambda: pt.roll(array, 1, axis=0),
        lambda: pt.special.softmax(array, axis=0),
        lambda: array.sum(axis=0),
        lambda: array.mean(),
    )


@production
def combined(g: Graph) -> Any:
    term = g.floats()
    array, like = term.var, g.floats(like=term).var
    as_long, number, count = g.floats(like=term, only=1).var, g.floats(0).var, g.count()
    return g.of(
        lambda: array * like,
        lambda: array - number,
        lambda: pt.tanh(array),
        lambda: pt.outer(g.floats(1).var, g.floats(1).var),
        lambda: array.T @ as_long,
        lambda: ifelse(count > 2, array, like),
        lambda: pt.specify_shape(array, [count] + [None] * (array.ndim - 1)),
    )


@production
def stepped(g: Graph) -> Any:
    term = g.floats(1)
    rows, other, number = term.var, g.floats(1, like=term).var, g.floats(0).var
    count, zero = g.count(), pt.as_tensor(np.float64(0))

    def step(a, h):
        return pt.tanh(a + 0.5 * h)

    return g.of(
        lambda: scan(step, [rows], [number]),
        lambda: scan(step, [rows], [zero], go_backwards=True),
        lambda: scan(step, [rows], [zero], n_steps=count),
        lambda: scan(step, [], [zero], non_sequences=[number], n_steps=count),
        lambda: scan(lambda a, b, h: h + a * b, [rows, other], [number]),
        lambda: scan(
            lambda i, a: a[i] * 2, [pt.arange(count)], None, non_sequences=rows
        ),
    )


@production
def derived(g: Graph) -> Any:
    array = g.floats().var
    cost = g.of(lambda: (array**2).mean(), lambda: (1.5 * array).sum())
    wrt = g.of(lambda: g.w, lambda: g.inputs[0], lambda: g.inputs[1])
    return g.of(lambda: pt.grad(cost, wrt), lambda: Rop(array, g.w, pt.ones_like(g.w)))
