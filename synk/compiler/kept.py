"""Terms of the data alone, which a rank computes once for the same rows and keeps.

In ``y * log(mu) - mu - gammaln(y + 1)`` the last term is the same in every call with
the same rows. `with_kept` moves such terms of a `Cut` to a part of their own. It runs
first in a call, or not at all, and the stages receive its values.

These terms depend on constants and this rank's rows of scattered inputs only: on each
row by itself, or on all (`FunctionSpec.passed_on`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import ancestors, io_toposort, walk
from pytensor.printing import Print
from pytensor.tensor.basic import Alloc, AllocEmpty, ARange, Eye, MakeVector
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import DenseTensorType

from ..ops import is_collective
from .spec import FunctionSpec
from .stages import Cut, Part, contributed, costs_nothing


@dataclass
class Kept(Part):
    """The part that computes the kept terms."""

    inputs: tuple[int, ...] = ()  # the indices of the inputs that it reads


def with_kept(cut: Cut, spec: FunctionSpec) -> tuple[Cut, Kept]:
    """Return a cut whose merged parts receive kept terms, and the part of these terms.

    The part is empty if no term is worth it.
    """
    graph = [var for stage in cut.stages for var in _made(stage.merged)]
    finder = _Finder(graph, spec)
    found = [finder.of(stage.merged) for stage in cut.stages]
    kept = dict.fromkeys(var for some in found for var in some)
    final = {*cut.outputs, *(new for _, new in cut.updates)}
    final.update(contributed(var) for stage in cut.stages for var in stage.reduced)
    final.update(var for made in cut.written.values() for var in made.takes)
    stages = []
    for stage, some in zip(cut.stages, found, strict=True):
        part = stage.merged
        received = [var for var in some if var not in part.receives]
        # Kept values need not be forwarded to later stages.
        wants = [var for var in part.wants if var not in kept or var in final]
        merged = replace(part, wants=wants, receives=[*part.receives, *received])
        stages.append(replace(stage, merged=merged))
    read = set(ancestors(kept))
    which = tuple(i for i, var in enumerate(spec.inputs) if var in read)
    return replace(cut, stages=stages), Kept(list(kept), inputs=which)


def _made(part: Part) -> list[Variable]:
    return [*part.computes, *(new for _, new in part.updates)]


class _Finder:
    """Finds terms of the rows alone that are worth keeping."""

    def __init__(self, graph: list[Variable], spec: FunctionSpec) -> None:
        self._passed_on = spec.passed_on
        # By variable of rows and constants alone: if it takes long to compute.
        is_dear = self._is_dear = dict.fromkeys(spec.inputs, False)
        for node in io_toposort([], graph):
            others = [var for var in node.inputs if not isinstance(var, Constant)]
            if _is_function(node) and all(map(is_dear.__contains__, others)):
                long = _takes_long(node) or any(is_dear[var] for var in others)
                is_dear.update(dict.fromkeys(node.outputs, long))

    def of(self, part: Part) -> list[Variable]:
        """Return the variables to keep: the last in `part` that need rows alone."""
        received = set(part.receives)

        def before(var: Variable) -> list[Variable] | None:
            is_end = self._is_worth(var) or var.owner is None or var in received
            return None if is_end else var.owner.inputs  # type: ignore[union-attr]

        computed = walk(_made(part), before, bfs=False)
        return [var for var in computed if self._is_worth(var)]  # type: ignore[arg-type]

    def _is_worth(self, var: Variable) -> bool:
        """Return whether to keep a variable rather than variables above it."""
        if var not in self._passed_on or not self._is_dear.get(var):
            return False
        return not costs_nothing(var.owner) and not _has_exp(var)


def _has_exp(var: Variable) -> bool:
    """Return whether a variable is exponentials, scaled or added up.

    PyTensor rewrites, say, ``log(exp(x) + exp(w))`` so that it does not overflow. For
    that it has to see the exponentials in the graph, so they are not kept.
    """

    def scaled(node: Any) -> list[Apply] | None:
        is_cheap = isinstance(getattr(node.op, "scalar_op", None), CHEAP)
        if not (is_cheap or costs_nothing(node)):
            return None
        return [given.owner for given in node.inputs if given.owner is not None]

    nodes: Any = walk([var.owner], scaled)
    kinds = (getattr(node.op, "scalar_op", None) for node in nodes)
    return any(isinstance(kind, (ps.Exp, ps.Exp2, ps.Expm1)) for kind in kinds)


def _is_function(node: Apply) -> bool:
    """Return whether a node is known to be a pure function: one of PyTensor's Ops.

    A user's Op may count its calls, draw, or read something else.
    """
    if is_collective(node) or isinstance(node.op, (Print, HasInnerGraph)):
        return False
    inner = getattr(node.op, "scalar_op", None), getattr(node.op, "core_op", None)
    for op in (node.op, *inner):
        if op is not None and type(op).__module__.partition(".")[0] != "pytensor":
            return False
    variables = (*node.inputs, *node.outputs)
    return all(isinstance(var.type, DenseTensorType) for var in variables)


def _takes_long(node: Apply) -> bool:
    """Return whether to compute a node takes longer than to read its kept result.

    Cheap elementwise functions are fused with other code. Arithmetic of matrices counts
    as long, as mostly products take its results, so that it is not fused.
    """
    if not isinstance(node.op, Elemwise):
        filling = (Alloc, AllocEmpty, ARange, Eye, MakeVector)
        return not (costs_nothing(node) or isinstance(node.op, filling))
    if isinstance(node.op.scalar_op, _ARITHMETIC):
        return sum(not one for one in node.outputs[0].type.broadcastable) > 1
    return not isinstance(node.op.scalar_op, CHEAP)


_ARITHMETIC = (ps.Add, ps.Sub, ps.Mul, ps.TrueDiv, ps.Sqr, ps.Sqrt)
# Functions that take about as long as reading a number.
CHEAP: tuple[type, ...] = (
    *_ARITHMETIC,
    *(ps.Neg, ps.Abs, ps.Sign, ps.Identity, ps.Second, ps.Switch, ps.Clip, ps.Cast),
    ps.Reciprocal,
    *(ps.ScalarMaximum, ps.ScalarMinimum, ps.LT, ps.GT, ps.LE, ps.GE, ps.EQ, ps.NEQ),
    *(ps.AND, ps.OR, ps.XOR, ps.Invert, ps.IsNan, ps.IsInf),
)
