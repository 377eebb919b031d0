"""An estimate of a call's work, in seconds of one core, from its graph and shapes.

The seconds are for vectorized code with BLAS products, as numba and XLA make it. A
factor of two is good enough: they show whether a call is long beside a launch, and how
much of it every rank repeats.

An Op's ``infer_shape`` gives the shapes of its outputs, as a graph of its inputs'
shapes. If these are known numbers, that small graph is evaluated here, Op by Op.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.compile import SharedVariable
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import graph_inputs, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.special import LogSoftmax, Softmax

from ..compiler.kept import CHEAP as CHEAP_OPS
from ..compiler.lengths import inferred_shapes, unknown_shape
from ..compiler.table import entry_of
from ..nn.windows import ConvOp
from ..ops import AllStack, is_collective
from ..user_frames import untraced

Lengths: TypeAlias = tuple[int, ...]
"""The shape of an array that need not exist."""

# Seconds of an addition or a multiplication in a product of matrices, by the bytes of a
# number; measured with 784 x 800 matrices and BLAS on one core of an Intel Xeon.
FLOP = {4: 1 / 130e9, 8: 1 / 65e9}
# Seconds per element of float64: of arithmetic in a loop with other arithmetic, of
# functions such as ``exp``, and of functions such as ``gammaln``.
CHEAP, DEAR, DEAREST = 0.07e-9, 3.5e-9, 10e-9
READ = 0.05e-9  # seconds per byte of a matrix that a vector multiplies: to read it
OTHER = 0.5e-9  # seconds per element that another Op moves or compares

_DEAREST = (ps.GammaLn, ps.Psi, ps.TriGamma, ps.GammaInc, ps.GammaIncC, ps.BetaInc)
_FEW = 64  # the most numbers of a value to evaluate: lengths, and arrays of lengths


@dataclass(frozen=True)
class Work:
    """The work of a call, for all rows; seconds are those of one core."""

    products: float  # seconds of products of matrices with rows, which threads share
    elements: float  # seconds of all else that depends on rows
    dear: float  # of `elements`, the seconds of functions such as ``exp``
    common: float  # seconds of values that depend on no row; every rank computes them
    reduced: int  # bytes that ranks reduce
    meetings: int  # the number of times that ranks meet for reductions
    widest: int  # bytes of the largest value that depends on rows
    factors: int = 0  # bytes of the matrices that rows are multiplied by


def work_of(
    graph: Sequence[Variable], rows: Iterable[Variable], sizes: KnownShapes
) -> Work | None:
    """Return the work of a call, or None if some shape or Op is not known.

    `graph` is the placed graph, with collectives; `rows` are the inputs with rows.
    """
    on_rows, level = set(rows), dict[Variable, int]()
    products = elements = dear = common = 0.0
    reduced = widest = factors = 0
    same: dict[Any, Any] = {}
    for node in io_toposort([], list(graph)):
        inputs = [same.get(var, var) for var in node.inputs]
        key = node.op, *inputs
        if key in same:  # equal to another node: computed once
            same.update(zip(node.outputs, same[key], strict=True))
            continue
        same[key] = node.outputs
        here = max((level.get(var, 0) for var in inputs), default=0)
        if is_collective(node):
            size = _nbytes(sizes, node.outputs[0])
            if size is None:
                return None
            reduced += size
            here += 1
        elif not on_rows.isdisjoint(inputs):
            on_rows.update(node.outputs)
        level.update(dict.fromkeys(node.outputs, here))
        seconds = _seconds(node, sizes)
        if seconds is None:
            return None
        if on_rows.isdisjoint(node.outputs):
            common += sum(seconds)
        else:
            products += seconds[0]
            elements += seconds[1]
            if isinstance(node.op, Elemwise) and _per_element(node) >= DEAR:
                dear += sum(seconds)
            if seconds[0]:
                whole = [var for var in inputs if var not in on_rows]
                factors += nbytes_of(whole, sizes) or 0
            if any(seconds):  # no view
                made = (_nbytes(sizes, var) or 0 for var in node.outputs)
                widest = max(widest, *made)
    meetings = max(level.values(), default=0)
    how = products, elements, dear, common, reduced, meetings, widest, factors
    return Work(*how)


def nbytes_of(variables: Iterable[Variable], sizes: KnownShapes) -> int | None:
    """Return the bytes of some values together, or None if a shape is not known."""
    found = [_nbytes(sizes, var) for var in variables]
    return None if None in found else sum(size or 0 for size in found)


def _nbytes(sizes: KnownShapes, var: Any) -> int | None:
    shape = sizes.shape(var)
    if shape is None or not hasattr(var.type, "numpy_dtype"):
        return None
    return math.prod(shape) * _itemsize(var)


def _itemsize(var: Any) -> int:
    return int(var.type.numpy_dtype.itemsize)


def _seconds(node: Apply, sizes: KnownShapes) -> tuple[float, float] | None:
    """Return the seconds of a node: (products, all else); None if unknown."""
    op: Any = node.op
    cost = entry_of(op).cost
    if cost == "view" or is_collective(node):
        return 0.0, 0.0
    if isinstance(op, (OpFromGraph, Scan)):
        return _inner(node, sizes)
    # Only tensors have elements to count.
    variables = [v for v in (*node.inputs, *node.outputs) if hasattr(v.type, "shape")]
    shapes = [sizes.shape(var) for var in variables]
    if None in shapes:
        return None
    numbers = [math.prod(shape or ()) for shape in shapes]
    largest = max(numbers, default=0)
    if isinstance(op, Blockwise):
        op = op.core_op
    if isinstance(op, Dot):
        return _product(node, sizes)
    if isinstance(op, ConvOp):
        # A convolution and its adjoints multiply the same pairs: of an output and its
        # window of the input.
        filters, outputs = (shape or () for shape in shapes[1:3])
        flops = 2 * math.prod(outputs) * math.prod(filters[1:])
        return 0.0, flops * _flop(node)
    if isinstance(getattr(op, "scalar_op", None), ps.Second):
        return 0.0, 0.0  # mostly removed by rewrites
    if isinstance(op, Elemwise):
        made = max(numbers[-len(node.outputs) :])
        one, size = _per_element(node), _itemsize(node.outputs[0]) / 8
        # A vector holds more short floats, and their series have fewer terms.
        return 0.0, made * one * (size if one < DEAR else size * size)
    if isinstance(op, CAReduce):
        return 0.0, largest * CHEAP
    if isinstance(op, CumOp):
        return 0.0, 2 * largest * OTHER
    if ".linalg" in type(op).__module__:  # a factorization or a solve: cubic
        taken = filter(None, shapes[: -len(node.outputs)])
        longest = max((shape[-1] for shape in taken), default=1)
        return 2 * largest * longest * _flop(node), 0.0
    if isinstance(op, (Softmax, LogSoftmax)):
        return 0.0, largest * (DEAR + 2 * CHEAP)
    if cost == "move":
        return 0.0, largest * OTHER
    return None


def _flop(node: Apply) -> float:
    return FLOP.get(_itemsize(node.outputs[0]), FLOP[8])


def _per_element(node: Apply) -> float:
    """Return the seconds per element, of float64, of an elementwise node."""
    op: Any = node.op
    if isinstance(op.scalar_op, ps.Pow) and all(
        isinstance(leaf, Constant) for leaf in graph_inputs([node.inputs[1]])
    ):
        return CHEAP  # a square, mostly
    if isinstance(op.scalar_op, CHEAP_OPS):
        return CHEAP
    return DEAREST if isinstance(op.scalar_op, _DEAREST) else DEAR


def _product(node: Apply, sizes: KnownShapes) -> tuple[float, float]:
    """Return the seconds of a product of matrices, or of a matrix and a vector."""
    left, right = (sizes.shape(var) or () for var in node.inputs)
    (made,) = (sizes.shape(var) or () for var in node.outputs)
    if sum(length > 1 for length in made) < 2:  # as long as it takes to read the matrix
        size = _itemsize(node.outputs[0])
        return 0.0, max(math.prod(left), math.prod(right)) * size * READ
    return 2 * math.prod(made) * (left[-1] if left else 1) * _flop(node), 0.0


def _inner(node: Apply, sizes: KnownShapes) -> tuple[float, float] | None:
    """Return the seconds of a node with an inner graph, of all steps of a scan."""
    op: Any = node.op
    steps, shapes = 1, [sizes.shape(var) for var in node.inputs]
    given: dict[Variable, Any] = {}
    if isinstance(op, Scan):
        number = sizes.number(node.inputs[0])
        if number is None:
            return None
        steps, info = int(number), op.info
        cut = info.n_seqs + info.n_mit_mot + info.n_mit_sot + info.n_sit_sot
        inner = op.get_oinp_iinp_iout_oout_mappings()["inner_inp_from_outer_inp"]
        for i, taken in inner.items():
            has_steps = 1 <= i <= cut
            shape = shapes[i][1:] if has_steps and shapes[i] else shapes[i]
            given.update((op.inner_inputs[k], shape) for k in taken)
    else:
        given = dict(zip(op.inner_inputs, shapes, strict=True))
    known = {var: shape for var, shape in given.items() if shape is not None}
    inside = KnownShapes(known)
    products = elements = 0.0
    for inner in io_toposort([], op.inner_outputs):
        seconds = _seconds(inner, inside)
        if seconds is None:
            return None
        products += seconds[0]
        elements += seconds[1]
    return steps * products, steps * elements


# -- shapes


class KnownShapes:
    """The shapes of variables in a graph, from given shapes of its inputs.

    Shared variables have the shapes of their values.
    """

    def __init__(self, given: Mapping[Variable, Lengths]) -> None:
        self._shapes: dict[Variable, Lengths | None] = dict(given)
        self._numbers: dict[Variable, Any] = {}

    def shape(self, var: Variable) -> Lengths | None:
        """Return the shape of a variable, or None if it is not known."""
        if var not in self._shapes:
            for node in io_toposort([], [var]):
                if not all(each in self._shapes for each in node.outputs):
                    self._shapes.update(self._output_shapes(node))
            if var.owner is None:
                self._shapes[var] = _leaf_shape(var)
        return self._shapes[var]

    def number(self, var: Variable) -> Any:
        """Return the value of a variable that depends on shapes and constants alone.

        None for other variables.
        """
        if isinstance(var, Constant):
            return _if_few(var.data)
        if var not in self._numbers:
            self._numbers[var] = None
            for node in io_toposort([], [var]):
                for each in node.outputs:
                    if self._numbers.get(each) is None:
                        self._numbers[each] = self._evaluated(node, each)
        return self._numbers[var]

    def _output_shapes(self, node: Apply) -> dict[Variable, Lengths | None]:
        """Return the shapes of a node's outputs; its inputs' shapes must be looked up.

        Inputs have the rows of all ranks, and so have gathered values.
        """
        given: list[Any] = []
        for var in node.inputs:
            if var.owner is None and var not in self._shapes:
                self._shapes[var] = _leaf_shape(var)
            shape = self._shapes[var]
            if shape is None:
                given.append(unknown_shape(var))
            else:
                with untraced():
                    given.append(tuple(pt.constant(n, dtype="int64") for n in shape))
        if is_collective(node):
            shape = self._shapes[node.inputs[0]]
            if isinstance(node.op, AllStack) and shape is not None:
                shape = 1, *shape  # as on one rank
            return {node.outputs[0]: shape}
        try:
            found = inferred_shapes(node, given)
        except Exception:  # the call will raise it
            found = None
        leaves = {var: _leaf_shape(var) for var in node.outputs}
        if found is None:
            return leaves
        # The lengths of a scan may depend on those of its own outputs.
        self._shapes.update(leaves)
        return {
            var: self._known_shape(lengths)
            for var, lengths in zip(node.outputs, found, strict=True)
        }

    def _known_shape(self, lengths: Sequence[Any] | None) -> Lengths | None:
        """Return a shape as numbers, from lengths that may be variables; or None."""
        if lengths is None:
            return None
        known = [
            self.number(each) if isinstance(each, Variable) else each
            for each in lengths
        ]
        return None if None in known else tuple(map(int, known))

    def _evaluated(self, node: Apply, output: Variable) -> Any:
        if isinstance(node.op, (Shape_i, Shape)):
            shape = self.shape(node.inputs[0])
            if shape is None:
                return None
            lengths = np.array(shape, dtype=np.int64)
            return lengths[node.op.i] if isinstance(node.op, Shape_i) else lengths
        given = [
            _if_few(var.data) if isinstance(var, Constant) else self._numbers.get(var)
            for var in node.inputs
        ]
        if any(value is None for value in given):
            return None
        made: list[list] = [[None] for _ in node.outputs]
        try:
            node.op.perform(node, given, made)
        except Exception:  # the call will raise it, or `perform` does not work alone
            return None
        return _if_few(made[node.outputs.index(output)][0])


def _leaf_shape(var: Any) -> Lengths | None:
    """Return the shape of a variable without its Op: of its value or type, or None."""
    if isinstance(var, Constant):
        return np.shape(var.data)
    if isinstance(var, SharedVariable):
        return np.shape(var.get_value(borrow=True))
    shape = getattr(var.type, "shape", None)
    return None if shape is None or None in shape else tuple(shape)


def _if_few(value: Any) -> Any:
    return value if np.size(value) <= _FEW else None
