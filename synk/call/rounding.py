"""Tells mistakes from rounding errors in results that should be equal.

Two ways to compute a result round differently. Usually the difference is small beside
the result, and within a tolerance.

But a result in which large terms cancel has few significant digits, and the gradient at
a minimum has none. So if the tolerance is exceeded, the graph is computed several times
with random changes to the last digits of its inputs and of each Op's outputs. The
spread of the results shows how large rounding errors are (Vignes, "A stochastic
arithmetic for reliable scientific computation", 1993).
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
from pytensor.tensor.type import DenseTensorType

from ..compiler.cloning import inner_graph_of
from ..engines import host
from ..engines.precision import EPSILONS, contains_product

TOLERANCES = {
    "float16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-9,
    "complex64": 1e-5,
    "complex128": 1e-9,
}
"""The largest difference, as a fraction of the serial result's largest absolute value.

For a larger one `Expected` finds out whether rounding errors explain it.
"""

TRIALS = 4
MARGIN = 10
"""Results may differ by `MARGIN` times the largest change in any of the `TRIALS`.

The change of a scalar may be small by chance. That all four are less than a tenth of
another such change has a probability of some 1e-4.
"""

FEW = 10_000
"""With at most `FEW` numbers in all arguments, the graph is computed in Python.

To compile C for every step takes seconds to minutes. With more numbers C is faster, and
its sums, which have other errors than NumPy's, are those to be compared.
"""

SAFE = "canonicalize", "stabilize"
"""The rewrites for stability, without which other numbers would be computed."""


def _in_python() -> Mode:
    return Mode("py", RewriteDatabaseQuery(include=[]))


class Expected:
    """The results that a call should give, and estimates of their rounding errors.

    `graph` is (inputs, outputs), `results` are the serial run's for `arguments`, which
    must not change meanwhile. The estimates use the graph after PyTensor's rewrites for
    stability, as these are computed. An inner graph, such as a scan's, is one step. In
    products of float32, factors are rounded to `precision`.
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
        """Describe how a value differs from result `i` beyond rounding, or None."""
        dtype = _coarsest(self._outputs[i])
        if dtype is None:
            return _difference(value, self._results[i], 0, lambda: 0.0)
        unit = float(np.finfo(dtype).eps)

        def allowed() -> float:
            return self._allowed(i, unit)

        return _difference(value, self._results[i], TOLERANCES[dtype], allowed)

    def _allowed(self, i: int, unit: float) -> float:
        """Return the absolute difference in result `i` that rounding errors explain.

        Each step has relative rounding errors of the size of `unit`.
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
        if are_few:
            _have_python_for_inner_graphs(graph)
        for node in graph.toposort():
            if self._of_products and contains_product(node):
                for i, var in enumerate(node.inputs):
                    if _is_of_floats(var):
                        graph.change_node_input(node, i, of_factor(var))
            for var in filter(_is_of_floats, node.outputs):
                graph.replace(var, of_step(var))
        mode = _in_python() if are_few else Mode("vm", RewriteDatabaseQuery(include=[]))
        return host.compile_graph(self._inputs, list(graph.outputs), [], mode, None, {})


def _have_python_for_inner_graphs(
    graph: FunctionGraph, around: tuple[type, ...] = ()
) -> None:
    """Have the inner graphs of a graph's nodes, and those in them, run in Python.

    `around` has the classes of the Ops that the graph is in.
    """
    for node in graph.toposort():
        if isinstance(node.op, OpFromGraph):
            node.op = InPython(node, around)


def _is_of_floats(var: Any) -> bool:
    return isinstance(var.type, DenseTensorType) and var.type.dtype in TOLERANCES


class Digits:
    """Changes last digits at random, by a relative difference of up to twice `unit`."""

    def __init__(self) -> None:
        self.unit, self._random = 0.0, np.random.default_rng(0)

    def changed(self, value: Any) -> Any:
        """Return `value` with other last digits, if it is of floats.

        Whole numbers stay as they are: they may be exact.
        """
        array = np.asarray(value)
        if array.dtype.kind not in "fc" or not self.unit:
            return value
        moves = self._random.uniform(-2 * self.unit, 2 * self.unit, array.shape)
        moved = (array * (1 + moves)).astype(array.dtype)
        is_whole = (array == np.rint(array)) & (np.abs(array) * self.unit < 1)
        return np.where(is_whole, array, moved)


class InPython(Op):
    """The Op that computes a node's inner graph by PyTensor's code in Python.

    PyTensor compiles an `OpFromGraph` in its default mode, whatever the outer one.
    """

    def __init__(self, node: Apply, around: tuple[type, ...]) -> None:
        graph: Any = FunctionGraph(*inner_graph_of(node), clone=True)
        kind = type(node.op)
        # Rewrites make a `Softmax` of the graph that is in a `Softmax`, and so on.
        if kind is OpFromGraph or kind not in around:
            rewrite_graph(graph, include=SAFE)
        _have_python_for_inner_graphs(graph, (*around, kind))
        inputs, outputs = list(graph.inputs), list(graph.outputs)
        self._types = [var.type for var in outputs]
        self._compute = host.compile_graph(inputs, outputs, [], _in_python(), None, {})

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to the inner graph's inputs."""
        return Apply(self, list(inputs), [each() for each in self._types])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Store the inner graph's outputs."""
        for storage, value in zip(output_storage, self._compute(*inputs), strict=True):
            storage[0] = value


class ChangeDigits(Op):
    """The Op that changes last digits by a `Digits`."""

    def __init__(self, digits: Digits) -> None:
        self.digits = digits

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to a tensor."""
        return Apply(self, list(inputs), [inputs[0].type()])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Store the changed value, in new memory."""
        # A copy even if nothing changes: PyTensor may write to the input's memory.
        output_storage[0][0] = np.array(self.digits.changed(inputs[0]))


def _change(one: Any, other: Any) -> float:
    """Return the largest difference of two arrays where both are finite; else 0."""
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape or other.dtype.kind not in "fc":
        return 0.0
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[finite].astype("D"), other[finite].astype("D")
    return float(np.max(np.abs(one - other), initial=0))


def _coarsest(var: Any) -> str | None:
    """Return the least precise float dtype that a variable is computed with.

    None for a variable that is no float itself; it must be equal.
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

    `tolerance` is a fraction of the largest absolute value; 0 for integers. If it is
    exceeded, ``rounding()`` returns the difference that rounding errors explain.
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
    if not tolerance:  # one of the two is of floats: an average of integers
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
