"""Functions that change shared variables, for the state machine.

A graph is what `synk.function` is given, and the same as a plain function of PyTensor's
whose shared variables are arguments: its results are the outputs and the new values.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from own_ops import OfFunction
from pytensor.compile import SharedVariable
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType

import synk

MODE = Mode("py", None)  # compiles at once
FORBIDDEN = 99
"""A row whose label this is fails, in functions that look at labels."""


class Guard(OfFunction):
    """Passes a value on, unless there is a label that is forbidden."""

    def compute(self, value, labels):
        if np.any(labels == FORBIDDEN):
            raise ValueError(f"label {FORBIDDEN} is forbidden")
        return np.array(value)


class AllRowsGuard(Guard):
    """One that synk knows nothing of: every rank computes it from all rows."""


synk.register_sharding(Guard, "rowwise")
synk.register_sharding(AllRowsGuard, None)


@dataclass(eq=False, repr=False)
class Graph:
    """A function of rows, and what it makes of shared variables.

    Outputs are variables or pairs with an op, and so are new values in the updates. If
    the variables of `keeps_rows` were scattered, each rank keeps its part, as their new
    values are computed row by row. Of those of `sliceable` a call uses some rows of
    each rank's. Without `in_slices` slices give other values, by the named ops.
    """

    name: str
    inputs: list
    outputs: list
    updates: list
    bcast: Sequence = ()
    keeps_rows: Sequence[SharedVariable] = ()
    sliceable: Sequence[SharedVariable] = ()
    local: bool = False
    in_slices: bool = True

    def __repr__(self) -> str:
        return repr(self.name)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))

    def make(self, mode: Any) -> synk.Function:
        """Return the function for ranks."""
        given = self.inputs, self.outputs, list(self.bcast), self.updates
        options = {"name": self.name, "mode": mode, "local": self.local}
        some = list(self.sliceable) or None
        return synk.function(*given, sliceable_shareds=some, **options)

    def with_forbidden(self, rows: list, row: int | None) -> list:
        """Return rows of which one has a forbidden label, if that makes it fail."""
        if row is None or not self.fails:
            return rows
        i = self.inputs.index(K)
        labels = rows[i].copy()
        labels[row % len(labels) if len(labels) else slice(0)] = FORBIDDEN
        return [*rows[:i], labels, *rows[i + 1 :]]

    @cached_property
    def plain_outputs(self) -> list[Variable]:
        return [out[0] if isinstance(out, tuple) else out for out in self.outputs]

    @cached_property
    def ops(self) -> list[str | None]:
        """What combines the ranks' values of each output; None if that is serial."""
        return [out[1] if isinstance(out, tuple) else None for out in self.outputs]

    @property
    def updated(self) -> list[SharedVariable]:
        return [_original(shared) for shared, *_ in self.updates]

    @property
    def news(self) -> list[Variable]:
        return [new for _, new, *_ in self.updates]

    @cached_property
    def left(self) -> list[bool]:
        """Which updates are each rank's own, as the op is named or all are local."""
        return [self.local or bool(op) for _, _, *op in self.updates]

    @cached_property
    def fails(self) -> bool:
        """Whether a forbidden label makes it fail: it is looked at, or looked up."""
        nodes = [var.owner for var in self._everything_in_it if var.owner is not None]
        ops = {type(node.op).__name__ for node in nodes if K in node.inputs}
        return any("Guard" in op or "Advanced" in op for op in ops)

    @cached_property
    def least_rows(self) -> int:
        """With fewer rows plain PyTensor fails too, or returns NaN."""
        of_rows = {*self.keeps_rows, *self.sliceable}
        given = {v: some_value(v, 0, int(v not in of_rows)) for v in self.shared}
        rows = [some_rows(0, 0)[var] for var in self.inputs]
        try:
            with np.errstate(all="ignore"):
                results = self.compute(rows, [np.array(1.0)] * len(self.bcast), given)
        except (ValueError, IndexError):
            return 1
        numbers = [r for of in results for r in of if hasattr(r, "dtype")]
        return int(any(np.isnan(value).any() for value in numbers))

    @cached_property
    def of_rows(self) -> list[bool]:
        """Which new values are functions of the rows."""
        rows = set(self.inputs)
        return [not rows.isdisjoint(ancestors([new])) for new in self.news]

    @cached_property
    def reads(self) -> list[set[SharedVariable]]:
        """Which shared variables each new value is computed from."""
        return [_shared([new]) for new in self.news]

    @cached_property
    def taken(self) -> set[SharedVariable]:
        """Which shared variables must be equal on all ranks."""
        if self.local:
            return set()
        outputs = zip(self.plain_outputs, self.ops, strict=True)
        news = zip(self.news, self.left, strict=True)
        graph = [out for out, op in outputs if op is None]
        return _shared(graph + [new for new, left in news if not left])

    @cached_property
    def shared(self) -> list[SharedVariable]:
        """The shared variables that it reads."""
        return sorted(_shared(self._everything_in_it), key=lambda var: var.name)

    @cached_property
    def _everything_in_it(self) -> list[Variable]:
        return list(ancestors([*self.plain_outputs, *self.news]))

    @cached_property
    def _everything(self) -> pytensor.compile.Function:
        return self._compile([*self.plain_outputs, *self.news])

    @cached_property
    def _rowless(self) -> pytensor.compile.Function:
        news = zip(self.news, self.of_rows, strict=True)
        return self._compile([new for new, of_rows in news if not of_rows])

    def _compile(self, results: list[Variable]) -> pytensor.compile.Function:
        stand_ins = {var: var.type() for var in self.shared}
        givens = {
            var: stand_ins[_original(var)]
            for var in self._everything_in_it
            if isinstance(var, SharedVariable)
        }
        inputs = [*self.inputs, *self.bcast, *stand_ins.values()]
        options = {"on_unused_input": "ignore", "no_default_updates": True}
        return pytensor.function(inputs, results, MODE, givens=givens, **options)

    def compute(self, rows: list, bcast: list, values: dict) -> tuple[list, list]:
        """Return the outputs and the new values of a serial run."""
        given = [copy.deepcopy(values[var]) for var in self.shared]
        results = self._everything(*rows, *bcast, *given)
        n = len(self.outputs)
        return results[:n], results[n:]

    def compute_rowless(self, rows: list, bcast: list, values: dict) -> list:
        """Return the new values that need no rows, and None for the others."""
        given = [copy.deepcopy(values[var]) for var in self.shared]
        results = iter(self._rowless(*rows, *bcast, *given))
        return [None if of_rows else next(results) for of_rows in self.of_rows]


def _shared(graph: list[Variable]) -> set[SharedVariable]:
    found = (var for var in ancestors(graph) if isinstance(var, SharedVariable))
    return set(map(_original, found))


# -- variables


_VALUES = {
    **{name: np.zeros(3) for name in ("w", "v", "g", "h")},
    **{name: np.array(0.0) for name in ("total", "mean", "top", "rate")},
    "kept": np.zeros(2),
    "table": np.zeros((2, 3)),
    "single": np.zeros(3, "float32"),
    "count": np.array(0),
    "counts": np.zeros(4, "int64"),
    "seen": np.array(False),
    "flags": np.zeros(2, bool),
    "rng": np.random.default_rng(0),
}
VARIABLES = {name: pytensor.shared(value, name) for name, value in _VALUES.items()}
TWINS = {
    VARIABLES[name]: VARIABLES[name].clone(name=f"{name}'s twin")
    for name in ("w", "total", "kept")
}
"""Other variables with the same containers: what sets the one sets the other."""
TENSORS = [var for var in VARIABLES.values() if not isinstance(var.type, RandomType)]
RNG = VARIABLES["rng"]
ROWWISE = {VARIABLES[name] for name in ("kept", "table", "flags")}
"""Of any number of rows."""


_ORIGINALS = {twin: original for original, twin in TWINS.items()}


def _original(var: SharedVariable) -> SharedVariable:
    return _ORIGINALS.get(var, var)


def some_value(var: SharedVariable, seed: int, length: int | None = None) -> Any:
    """Return a value that fits a variable; of so many rows, where these may differ."""
    rng = np.random.default_rng([seed, 7])
    if var is RNG:
        return np.random.default_rng(seed)
    shape = {"table": (0, 3), "counts": (4,)}.get(var.name, (3,))
    if var in ROWWISE:
        shape = (seed % 5 if length is None else length, *shape[1:])
    if var.type.ndim == 0:
        shape = ()
    if var.name == "rate":
        return np.asarray(rng.uniform(0.01, 0.1))
    kind = var.type.numpy_dtype
    if kind.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    if kind.kind == "i":
        return np.asarray(rng.integers(0, 9, shape))
    return np.asarray(rng.normal(size=shape), kind)


# -- rows

X, Y, K = pt.matrix("x"), pt.vector("y"), pt.lvector("k")
B = pt.scalar("b")


def some_rows(n: int, seed: int) -> dict:
    rng = np.random.default_rng([seed, 11])
    x, y = rng.normal(size=(n, 3)), rng.normal(size=n)
    return {X: x, Y: y, K: rng.integers(0, 4, n)}
