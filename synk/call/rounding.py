"""Telling mistakes from rounding errors in results that should be equal.

Two ways to compute a result round differently. Mostly what they differ by is small
beside the result, and a tolerance tells that from a mistake.

A result in which large terms cancel has few digits that mean anything, and the gradient
in a minimum has none. Where the tolerance is exceeded, the graph is computed again with
other last digits in all that goes into it, and in what each step of it makes. How far
its results differ then shows how large the errors are (Vignes, "A stochastic arithmetic
for reliable scientific computation", 1993).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.link.vm import VMLinker
from pytensor.tensor.type import DenseTensorType

from ..engines import host
from ..engines.precision import EPSILONS, contains_product

TOLERANCES = {
    "float16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-9,
    "complex64": 1e-5,
    "complex128": 1e-9,
}
"""Largest difference, as a part of the largest absolute value of the serial result.

Of a larger one `Expected` tells whether rounding errors explain it.
"""

TRIALS = 4
MARGIN = 10
"""Results may differ by so many times the most that any of the trials has changed.

The change of a scalar may be small by chance. That all four are less than a tenth of
another such change has a probability of some 1e-4.
"""

FEW = 10_000
"""Of so few numbers in all arguments PyTensor's code in Python computes the graph.

To compile C for every step, and numba for graphs within it, takes seconds to minutes.
With more numbers errors may add up otherwise in C, and it is faster.
"""


class Expected:
    """What a call should give: a serial run's results, and the rounding errors in them.

    What PyTensor makes of the graph to be safe from overflow is kept, so that errors
    are those of what is computed. A graph within it, as a scan's, is one step. The
    arguments must not change meanwhile. In `precision` products of float32 are
    computed, and their factors rounded.
    """

    def __init__(
        self,
        graph: tuple[list[Variable], list[Variable]],
        arguments: Sequence[Any],
        precision: str | None,
        results: Sequence[Any],
    ) -> None:
        self._inputs, self._outputs = graph
        self._arguments, self._results = arguments, results
        self._digits, self._factors = Digits(), Digits()
        self._of_products = EPSILONS.get(precision or "", 0.0) / 4
        self._compiled: Callable[..., list] | None = None
        self._changes: dict[float, list[float]] = {}

    def problem(self, i: int, value: Any) -> str | None:
        """Say how a value differs from result `i`, if it does beyond rounding."""
        dtype = _coarsest(self._outputs[i])
        if dtype is None:
            return _difference(value, self._results[i], 0, lambda: 0.0)
        unit = float(np.finfo(dtype).eps)

        def allowed() -> float:
            return self._allowed(i, unit)

        return _difference(value, self._results[i], TOLERANCES[dtype], allowed)

    def _allowed(self, i: int, unit: float) -> float:
        """Return by how much other ways to compute result `i` may differ from it.

        It is computed with rounding errors of that relative size.
        """
        if unit not in self._changes:
            plain = self._computed(0.0, 0.0)
            self._changes[unit] = [0.0] * len(plain)
            for _ in range(TRIALS):
                trial = self._computed(unit, self._of_products)
                most = map(max, self._changes[unit], map(_change, trial, plain))
                self._changes[unit] = list(most)
        return MARGIN * self._changes[unit][i]

    def _computed(self, unit: float, of_products: float) -> list[Any]:
        self._digits.unit, self._factors.unit = unit, of_products
        arguments = list(map(self._digits.changed, self._arguments))
        if self._compiled is None and sum(map(np.size, self._arguments)) <= FEW:
            compiled = self._compile(are_few=True)
            # PyTensor has no Python for some steps, as for sums of 40 terms.
            with contextlib.suppress(Exception):
                results = list(compiled(*arguments))
                self._compiled = compiled
                return results
        if self._compiled is None:
            self._compiled = self._compile(are_few=False)
        return list(self._compiled(*arguments))

    def _compile(self, are_few: bool) -> Callable[..., list]:
        graph: Any = FunctionGraph(outputs=self._outputs, clone=True, copy_inputs=False)
        rewrite_graph(graph, include=SAFE)
        of_step, of_factor = ChangeDigits(self._digits), ChangeDigits(self._factors)
        for node in graph.toposort():
            if are_few and isinstance(node.op, OpFromGraph):
                node.op = _in_python(node.op)
            if self._of_products and contains_product(node):
                for i, var in enumerate(node.inputs):
                    if _is_of_floats(var):
                        graph.change_node_input(node, i, of_factor(var))
            for var in filter(_is_of_floats, node.outputs):
                graph.replace(var, of_step(var))
        mode = _mode_of_python() if are_few else Mode("vm", NO_REWRITES)
        return host.compile_graph(self._inputs, list(graph.outputs), [], mode, None, {})


SAFE = "canonicalize", "stabilize"
NO_REWRITES = RewriteDatabaseQuery(include=[])


def _mode_of_python(*rewrites: str) -> Mode:
    return Mode(VMLinker(c_thunks=False), RewriteDatabaseQuery(include=rewrites))


def _in_python(op: Any) -> OpFromGraph:
    """Return an Op with the same graph, which is computed in Python."""
    op = op.clone()
    op._fn, op.kwargs = None, op.kwargs | {"mode": _mode_of_python(*SAFE)}
    return op


def _is_of_floats(var: Any) -> bool:
    return isinstance(var.type, DenseTensorType) and var.type.dtype in TOLERANCES


class Digits:
    """How last digits are changed at present: by up to twice `unit`."""

    def __init__(self) -> None:
        self.unit, self._random = 0.0, np.random.default_rng(0)

    def changed(self, value: Any) -> Any:
        """Return floats with other last digits, and anything else as it is.

        Whole numbers stay as well: they are exact, and may be meant as such.
        """
        array = np.asarray(value)
        if array.dtype.kind not in "fc" or not self.unit:
            return value
        moves = self._random.uniform(-2 * self.unit, 2 * self.unit, array.shape)
        moved = (array * (1 + moves)).astype(array.dtype)
        is_whole = (array == np.rint(array)) & (np.abs(array) * self.unit < 1)
        return np.where(is_whole, array, moved)


class ChangeDigits(Op):
    """Changes the last digits of what is no whole number."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute it."""
        # A copy where nothing changes: PyTensor may write to the input's memory.
        output_storage[0][0] = np.array(self.digits.changed(inputs[0]))


def _change(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays, as far as they are finite."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or other.dtype.kind not in "fc":
        return 0.0
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[finite].astype("D"), other[finite].astype("D")
    return float(np.max(np.abs(one - other), initial=0))


def _coarsest(var: Any) -> str | None:
    """Return the dtype of the coarsest floats that one is computed in.

    None for a variable that is no float itself, and must be equal.
    """
    if var.type.dtype not in TOLERANCES:
        return None
    computed = [
        found.type.dtype
        for found in ancestors([var])
        if (found.owner is not None or found is var)
        and isinstance(found.type, DenseTensorType)
    ]
    return max(computed, key=lambda dtype: TOLERANCES.get(dtype, 0))


def _difference(
    value: Any, serial: Any, tolerance: float, rounding: Callable[[], float]
) -> str | None:
    """Describe how a value differs from the serial one, or return None.

    The tolerance is a part of the largest absolute value, 0 for what must be equal.
    Where it does not decide, `rounding` is asked what rounding errors explain.
    """
    value, serial = np.asarray(value), np.asarray(serial)
    if value.shape != serial.shape:
        return f"its shape is {value.shape}, and serially {serial.shape}"
    if value.dtype.kind not in "fc" and serial.dtype.kind not in "fc":
        wrong = np.flatnonzero(value != serial)
        if not wrong.size:
            return None
        first = value.flat[wrong[0]], serial.flat[wrong[0]]
        size = f"{wrong.size} of {value.size} values"
        return f"{size} differ, the first is {first[0]}, and serially {first[1]}"
    if not tolerance:  # an average of integers
        tolerance = TOLERANCES["float64"]
    is_complex = "c" in value.dtype.kind + serial.dtype.kind
    wide = "clongdouble" if is_complex else "longdouble"
    value, serial = value.astype(wide), serial.astype(wide)
    same = (value == serial) | (np.isnan(value) & np.isnan(serial))
    finite = np.isfinite(value) & np.isfinite(serial)
    odd = np.count_nonzero(~same & ~finite)
    if odd:
        return f"{odd} of {value.size} values are not finite in one of the runs"
    gap = np.max(np.abs(value[finite] - serial[finite]), initial=0)
    scale = np.max(np.abs(serial[finite]), initial=0)
    if gap <= tolerance * scale:
        return None
    allowed = rounding()
    if gap <= allowed:
        return None
    relative = gap / scale if scale else np.inf
    return (
        f"the largest difference is {gap:.3g}, {relative:.3g} of the largest value"
        f" {scale:.3g}; the tolerance is {tolerance:g} of it, and rounding errors"
        f" explain {allowed:.3g}"
    )
