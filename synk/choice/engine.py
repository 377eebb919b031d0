"""Which engines can compute a graph on this machine, and which graphs they are fast at.

synk chooses the engine only if the script has named no mode and has not changed
PyTensor's settings. A graph that draws random numbers keeps the default engine, as each
engine draws other numbers.

Some Ops raise an error in the other engines, while JAX goes on with some number: an
assertion, a matrix that is not positive definite, an integer divided by zero. So synk
chooses JAX only for graphs of Ops that have no such case.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, cast

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import graph_inputs, io_toposort
from pytensor.scalar import Cast, Composite, IntDiv, Mod, Pow, ScalarOp
from pytensor.scan.op import Scan
from pytensor.tensor.basic import ARange
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.special import LogSoftmax, Softmax

from ..compiler.sizes import is_of_shapes
from ..compiler.spec import FunctionSpec
from ..compiler.table import entry_of
from ..engines import ENGINES, are_settings_default
from ..engines.jax_bounds import INDEXING, index_entries
from ..errors import SynkError
from ..ops import COLLECTIVES, Local, is_collective

# An environment variable: "auto", "default" (PyTensor's mode), or an engine's name.
VARIABLE = "SYNK_ENGINE"

Kind: TypeAlias = Literal["vectors", "matrices", "other"]
"""The kind of a graph, which tells the fast engine: see `kind_of`."""


def engines_for(spec: FunctionSpec) -> tuple[str, ...]:
    """Return the engines to choose from for a function; none if no choice is open."""
    if asked_for() != "auto" or is_settled(spec) or _draws(spec):
        return ()
    return tuple(
        name
        for name, engine in ENGINES.items()
        if (engine.HAS_BLOCKS or not spec.has_any_bits)
        and engine.can_be_chosen()
        and (not engine.RAISES_LESS or _is_same_in_jax(spec.graph))
    )


def _draws(spec: FunctionSpec) -> bool:
    return any(isinstance(var.type, RandomType) for var in graph_inputs(spec.graph))


def draws_among_rows(spec: FunctionSpec) -> bool:
    """Return whether some random draw may depend on values of rows."""
    return _draws(spec) and not spec.draws_first


def engine_asked_for(spec: FunctionSpec) -> str | None:
    """Return the engine that `SYNK_ENGINE` names; None if the script names a mode."""
    asked = asked_for()
    return asked if asked in ENGINES and not is_settled(spec) else None


def asked_for() -> str:
    """Return the value of `SYNK_ENGINE`: "auto", "default" or an engine's name."""
    asked = os.environ.get(VARIABLE, "") or "auto"
    if asked not in ("auto", "default", *ENGINES):
        known = ", ".join(["auto", "default", *ENGINES])
        raise SynkError(f"{VARIABLE} is {asked!r}; it can be one of {known}")
    return asked


def may_be_alone(spec: FunctionSpec) -> bool:
    """Return whether rank 0 alone gives the same results as all ranks.

    It does if the plain graph has no collectives or values of single ranks, and if the
    op of each output is proven to give the serial result.
    """
    others = spec.sliceable, spec.streams, spec.own_statistics, spec.is_local
    updates = spec.unplaced_updates, spec.own_updates, spec.row_updates
    if any(others) or any(updates) or not all(each.agrees for each in spec.findings):
        return False
    graph = spec.plain_graph
    words = (*COLLECTIVES, Local)
    return not any(isinstance(node.op, words) for node in io_toposort([], graph))


def is_settled(spec: FunctionSpec) -> bool:
    """Return whether the script has chosen how a function is computed."""
    if spec.mode is not None or spec.precision is not None or spec.pad:
        return True
    return not are_settings_default()


def _is_same_in_jax(graph: list[Variable], is_inner: bool = False) -> bool:
    """Return whether JAX gives the other engines' results or errors in every case."""
    for node in io_toposort([], graph):
        if isinstance(node.op, INDEXING):
            is_same = _is_index_same(node, is_inner)
        elif isinstance(node.op, (OpFromGraph, Scan)):
            is_same = _is_same_in_jax(node.op.inner_outputs, is_inner=True)
            if isinstance(node.op, Scan):
                is_same &= not node.op.info.as_while and is_of_shapes(node.inputs[0])
        else:
            is_same = _is_node_same(node)
        if not is_same:
            return False
    return True


def _is_index_same(node: Apply, is_inner: bool) -> bool:
    """Return whether JAX can index so, and synk checks the bounds.

    In inner graphs synk does not check indices that are values: `engines.jax_bounds`.
    """
    for entry in index_entries(node):
        if isinstance(entry, slice):
            parts = entry.start, entry.stop, entry.step
            if not all(is_of_shapes(p) for p in parts if isinstance(p, Variable)):
                return False
        elif is_inner or entry.type.dtype == "bool":
            return False
    return True


def _is_node_same(node: Apply) -> bool:
    op = node.op
    if isinstance(op, (Elemwise, CAReduce)):
        return _is_scalar_same(op.scalar_op, node)
    if isinstance(op, Blockwise):
        return isinstance(op.core_op, Dot)
    return bool(entry_of(op).same_in_jax) or is_collective(node)


def _is_scalar_same(op: ScalarOp, node: Apply) -> bool:
    if isinstance(op, Composite):
        return False  # of PyTensor's own making, after synk has looked
    are_whole = [var.type.dtype[0] in "iu" for var in node.inputs]  # type: ignore[attr-defined]
    is_whole = node.outputs[0].type.dtype[0] in "iu"  # type: ignore[attr-defined]
    if isinstance(op, (IntDiv, Mod, Pow)):
        return not is_whole
    if isinstance(op, Cast):  # engines cast NaN, and floats out of range, differently
        return all(are_whole) or not is_whole
    return True


# -- which is fast


def kind_of(
    graph: Sequence[Variable], rows: Iterable[Variable], is_step: bool = False
) -> Kind:
    """Return the kind of a graph, which tells the engine that is fast for it.

    "vectors"
        Elementwise on vectors, with sums and products by vectors, as log-likelihoods
        and their gradients. Numba is fastest: it makes one loop, in blocks of rows,
        with synk's own functions (`engines.numba_math`).
    "matrices"
        Elementwise on matrices, or with products of matrices. Numba is fast in blocks
        of rows; if there are none, JAX compiles faster.
    "other"
        With other Ops, such as a training step that indexes by labels: numba takes
        several times as long as JAX to compile it.

    In a step (`is_step`: with updates) an ``arange`` makes the kind "other".
    """
    dtypes = {str(getattr(each.type, "dtype", "")) for each in graph}
    inexact = {dtype for dtype in dtypes if dtype.startswith(("float", "complex"))}
    if len(inexact) > 1 or not inexact <= {"float32", "float64"}:
        return "other"
    on_rows, kind = set(rows), cast(Kind, "vectors")
    for node in io_toposort([], list(graph)):
        if is_collective(node):
            continue
        op = node.op
        if not on_rows.isdisjoint(node.inputs):
            on_rows.update(node.outputs)
            maps = isinstance(op, (Elemwise, LogSoftmax, Softmax))
            through = node.outputs if maps else node.inputs
            if (maps or isinstance(op, CAReduce)) and not _is_vector(through[0]):
                kind = "matrices"
        if isinstance(op.core_op if isinstance(op, Blockwise) else op, Dot):
            if not any(map(_is_vector, node.inputs)):
                kind = "matrices"
        elif isinstance(op, ARange):
            if is_step:  # mostly to index by labels
                return "other"
        elif not entry_of(op).by_elements:
            return "other"
    return kind


def _is_vector(operand: Any) -> bool:
    """Return whether a value has at most one dimension of another length than 1."""
    shape = operand.type.shape
    return len(shape) < 2 or sum(length != 1 for length in shape) < 2
