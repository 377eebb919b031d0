"""Random graphs on scattered rows, for tests of the splitting proof.

A graph grows from its inputs: at each step a production (see `random_productions`)
takes values that are there and makes a new one.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import AllocEmpty
from pytensor.tensor.subtensor import IncSubtensor

N = "n"


def is_merged(dim) -> bool:
    """Tell whether a length is that of the rows' axis and another one, merged."""
    return isinstance(dim, str) and dim != N


def is_empty(var) -> bool:
    """Tell whether a variable holds what has not been computed yet."""
    if var.owner is None:
        return False
    if isinstance(var.owner.op, IncSubtensor):
        return is_empty(var.owner.inputs[0])
    return isinstance(var.owner.op, AllocEmpty)


def is_close(got, right) -> bool:
    """Tell whether a value of a random graph is right, to rounding of the largest."""
    size = max(1.0, np.abs(np.nan_to_num(right)).max(initial=0))
    return np.shape(got) == np.shape(right) and np.allclose(
        got, right, 1e-7, 1e-9 * size, equal_nan=True
    )


@dataclass(eq=False)
class Term:
    """A variable and its shape: numbers, "n" for the rows, None if unknown.

    "2n" is twice as long as there are rows, in whatever order.
    """

    var: pt.TensorVariable
    dims: tuple

    @property
    def ndim(self) -> int:
        return len(self.dims)

    @cached_property
    def of_rows(self) -> bool:
        """Whether inputs enter."""
        return any(
            var.owner is None and not isinstance(var, (Constant, SharedVariable))
            for var in ancestors([self.var])
        )


class Choice:
    """Where the decisions come from: a function that returns an int below another."""

    def __init__(self, below: Callable[[int], int]) -> None:
        self.below = below

    def of(self, items):
        """Choose one of several."""
        items = list(items)
        return items[self.below(len(items))]

    def maybe(self) -> bool:
        """Toss a coin."""
        return bool(self.below(2))


class Graph:
    """Inputs, values for everything else, and the terms made so far."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        x, y, z = pt.matrix("x"), pt.vector("y"), pt.tensor("z", shape=(None, 2, 3))
        k = pt.lvector("k")
        self.inputs = [x, y, z, k]
        rng = np.random.default_rng(0)
        self.shared = [
            pytensor.shared(rng.uniform(0.5, 1.5, (3, 3)), "w"),
            pytensor.shared(rng.uniform(-1.5, 1.5, 3), "b"),
            pytensor.shared(rng.uniform(0.5, 1.5), "c"),
            pytensor.shared(rng.uniform(-1.5, 1.5, (4, 3)), "table"),
        ]
        w, b, c, table = self.shared
        self.terms = [
            Term(x, (N, 3)),
            Term(y, (N,)),
            Term(z, (N, 2, 3)),
            Term(k, (N,)),
            Term(z.transpose(1, 0, 2), (2, N, 3)),
            Term(w, (3, 3)),
            Term(b, (3,)),
            Term(c, ()),
            Term(table, (4, 3)),
        ]
        self.first_made = len(self.terms)

    @property
    def made(self) -> list[Term]:
        """What productions have made."""
        return self.terms[self.first_made :]

    def grow(self, steps: int, productions: list) -> None:
        """Apply so many productions."""
        for _ in range(steps):
            with contextlib.suppress(LookupError):  # nothing fits
                term = self.choice.of(productions)(self)
                if term is not None and term.ndim <= 3:
                    self.terms.append(term)

    def some(self, fits: Callable[[Term], bool]) -> Term:
        """Choose a term that fits, a recent one as often as any other."""
        fitting = [term for term in self.terms if fits(term)]
        if not fitting:
            raise LookupError
        groups = [
            [term for term in fitting if term in self.made[-3:]],
            [term for term in fitting if term.of_rows and N in term.dims],
            [term for term in fitting if term.of_rows and N not in term.dims],
            fitting,
        ]
        return self.choice.of(self.choice.of([group for group in groups if group]))

    def floats(self, fits=lambda term: True) -> Term:
        """Choose one of those without merged axes."""
        return self.all_floats(
            lambda term: not any(map(is_merged, term.dims)) and fits(term)
        )

    def of_dims(self, *shapes: tuple) -> Term:
        """Choose one of floats that has one of some shapes."""
        return self.floats(lambda term: term.dims in shapes)

    def all_floats(self, fits=lambda term: True) -> Term:
        """Choose a term of floats whose shape is known."""
        return self.some(
            lambda term: (
                term.var.dtype == "float64" and None not in term.dims and fits(term)
            )
        )

    def slope(self, cost, **options) -> Term | None:
        """Return a gradient by a parameter or by rows, if there is one."""
        of = self.choice.of([*self.shared, self.inputs[0]])
        dims = next(term.dims for term in self.terms if term.var is of)
        try:
            var = pytensor.grad(cost, of, disconnected_inputs="ignore", **options)
        except (NotImplementedError, TypeError, pytensor.gradient.NullTypeGradError):
            return None
        return Term(var, dims) if getattr(var, "dtype", "") == "float64" else None

    def values(self, rows: int, seed: int) -> list[np.ndarray]:
        """Return values for the inputs."""
        rng = np.random.default_rng([rows, seed])
        return [
            rng.uniform(-2, 2, (rows, 3)),
            rng.uniform(-2, 2, rows),
            rng.uniform(-2, 2, (rows, 2, 3)),
            rng.integers(0, 3, rows),
        ]
