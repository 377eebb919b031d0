"""Random graphs of Ops that take lengths, with what plain PyTensor makes of them.

A graph grows from its inputs: at each step one of the `WAYS` takes arrays and counts
that are there, and makes a new one. The counts follow from the number of rows in some
way, or from their values; the arrays have rows, or are what needs all of them at once.
"""

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import Rop
from pytensor.ifelse import ifelse
from reference import PY

ROWS = 2, 4, 7


def scan(step, sequences, initial, **options):
    """Scan with one kind of result in all versions of PyTensor."""
    return pytensor.scan(step, sequences, initial, return_updates=False, **options)


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

    def fits(self, other: "Term", ndim: int | None = None) -> bool:
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
        counts = n, y.size, n - 1, n // 2, 2 * n, x.size, (y > 0).sum()
        for var in (x, y, k, w, x @ w, x.mean(), pt.constant(2), *counts):
            self.add(var)
        self.given = len(self.terms)

    @property
    def made(self) -> list[Term]:
        """What has been made of those that were given."""
        return self.terms[self.given :]

    def grow(self, steps: int) -> None:
        """Make so many terms, as far as there is what they are made of."""
        for _ in range(4 * steps):
            if len(self.made) < steps:
                with contextlib.suppress(LookupError, TypeError, ValueError):
                    self.add(self.random.choice(WAYS)(Picks(self)))

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


class Picks:
    """What one of the ways takes, by name: chosen when it is asked for first."""

    CHOICES: ClassVar[dict[str, Callable[["Picks"], Any]]] = {
        "number": lambda p: p.g.floats(0).var,
        "of_rows": lambda p: p.g.floats(1),
        "vector": lambda p: p.of_rows.var,
        "beside": lambda p: p.g.floats(1, like=p.of_rows).var,
        "term": lambda p: p.g.floats(),
        "array": lambda p: p.term.var,
        "like": lambda p: p.g.floats(like=p.term).var,
        "as_long": lambda p: p.g.floats(like=p.term, only=1).var,
        "as_long_and_wide": lambda p: p.g.floats(p.array.ndim, like=p.term, only=1).var,
        "other": lambda p: p.g.floats(p.array.ndim).var,
        "count": lambda p: p.g.count(),
        "less": lambda p: p.g.count(),
        "integers": lambda p: (
            p.g.some(lambda t: t.var.ndim == 1 and t.var.dtype == "int64").var
        ),
        "axis": lambda p: p.g.random.randrange(p.array.ndim),
        "change": lambda p: p.g.random.choice([pt.set_subtensor, pt.inc_subtensor]),
        "zeros": lambda p: pt.zeros((p.count, *list(p.array.shape)[1:])),
        "cost": lambda p: p.g.random.choice([(p.array**2).mean(), 1.5 * p.array.sum()]),
        "wrt": lambda p: p.g.random.choice([p.g.w, *p.g.inputs[:2]]),
    }

    def __init__(self, g: Graph) -> None:
        self.g = g

    def __getattr__(self, name: str) -> Any:
        setattr(self, name, self.CHOICES[name](self))
        return self.__dict__[name]


def step(a, h):
    return pt.tanh(a + 0.5 * h)


SHAPES = (-1, 2), (-1, 2, 2), (2, -1), (-1,), (-1, 1, 3), (-1, 6)
ZERO = pt.as_tensor(np.float64(0))
WAYS: list[Callable[[Picks], Any]] = [
    # New arrays.
    lambda p: pt.alloc(p.number, p.count),
    lambda p: pt.alloc(p.vector, p.count, p.vector.shape[0]),
    lambda p: pt.broadcast_to(p.vector, (p.count, p.vector.shape[0])),
    lambda p: pt.zeros((p.count, 2)),
    lambda p: pt.arange(p.count),
    lambda p: pt.arange(1, p.count + 1) * 1.0,
    lambda p: pt.linspace(0, 1, p.count),
    lambda p: pt.eye(p.count, 3),
    lambda p: pt.tri(p.count, 3),
    # Counts.
    lambda p: p.array.shape[p.axis],
    lambda p: p.array.size,
    lambda p: p.count + 1,
    lambda p: p.count // 2,
    lambda p: pt.minimum(p.count, p.less),
    lambda p: p.count - p.less,
    # Some of an array.
    lambda p: p.array[: p.count],
    lambda p: p.array[p.count :],
    lambda p: p.array[-p.count :],
    lambda p: p.array[: p.count][::-1],
    lambda p: p.array[::-1],
    lambda p: p.array[1:],
    lambda p: p.array[::2],
    lambda p: p.array[p.count - 1],
    lambda p: p.array[pt.arange(p.count)],
    lambda p: p.array[p.integers],
    # Put into one.
    lambda p: p.change(pt.zeros_like(p.array)[1:], p.array[:-1]),
    lambda p: p.change(p.zeros[: p.array.shape[0]], p.array),
    lambda p: p.change(p.array[: p.count], 2.0),
    lambda p: p.change(p.array[: p.array.shape[0]], p.as_long_and_wide),
    lambda p: pt.inc_subtensor(p.zeros[p.integers], p.array),
    # In another shape, with others, or repeated.
    *[lambda p, of=of: p.array.reshape(of) for of in SHAPES],
    lambda p: p.array.reshape((p.count, -1)),
    lambda p: p.array.reshape((-1, p.count)),
    lambda p: pt.join(p.axis, p.array, p.other),
    lambda p: pt.concatenate([p.vector, pt.zeros(p.count)]),
    lambda p: pt.split(p.array, [p.count, p.array.shape[0] - p.count], 2, axis=0)[0],
    lambda p: pt.tile(p.array, 2),
    lambda p: pt.repeat(p.array, 2, axis=0),
    lambda p: pt.repeat(p.array, p.integers, axis=0),
    lambda p: pt.tile(p.vector[None], (p.count, 1)),
    lambda p: pt.diag(p.vector),
    # Along the rows.
    lambda p: pt.cumsum(p.array, axis=0),
    lambda p: pt.sort(p.array, axis=0),
    lambda p: pt.diff(p.array, axis=0),
    lambda p: pt.roll(p.array, 1, axis=0),
    lambda p: pt.special.softmax(p.array, axis=0),
    lambda p: p.array.sum(axis=0),
    lambda p: p.array.mean(),
    # Beside others.
    lambda p: p.array * p.like,
    lambda p: p.array - p.number,
    lambda p: pt.tanh(p.array),
    lambda p: pt.outer(p.vector, p.g.floats(1).var),
    lambda p: p.array.T @ p.as_long,
    lambda p: ifelse(p.count > 2, p.array, p.like),
    lambda p: pt.specify_shape(p.array, [p.count] + [None] * (p.array.ndim - 1)),
    # In steps.
    lambda p: scan(step, [p.vector], [p.number]),
    lambda p: scan(step, [p.vector], [ZERO], go_backwards=True),
    lambda p: scan(step, [p.vector], [ZERO], n_steps=p.count),
    lambda p: scan(step, [], [ZERO], non_sequences=[p.number], n_steps=p.count),
    lambda p: scan(lambda a, b, h: h + a * b, [p.vector, p.beside], [p.number]),
    lambda p: scan(
        lambda i, a: a[i] * 2, [pt.arange(p.count)], None, non_sequences=p.vector
    ),
    # Gradients.
    *[lambda p: pt.grad(p.cost, p.wrt), lambda p: pt.grad(p.cost, p.wrt)],
    lambda p: Rop(p.array, p.g.w, pt.ones_like(p.g.w)),
]
