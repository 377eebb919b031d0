"""`theano.gof.graph.is_same_graph`, which later releases of PyTensor have not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pytensor.graph.basic import Variable, equal_computations
from pytensor.graph.replace import clone_replace

__all__ = ["is_same_graph"]


def is_same_graph(
    var1: Variable,
    var2: Variable,
    givens: Mapping[Variable, Variable]
    | Iterable[tuple[Variable, Variable]]
    | None = None,
) -> bool:
    """Tell whether two variables are computed in the same way.

    Parameters
    ----------
    var1, var2 : Variable
    givens : mapping or iterable of pairs, optional
        Variables that are replaced before, in both, as `theano.function` does.

    Returns
    -------
    bool
        ``(x * y) * z`` is another computation than ``x * (y * z)``.
    """
    if givens:
        given = dict(givens)
        var1, var2 = (given.get(var, var) for var in (var1, var2))
        var1, var2 = clone_replace([var1, var2], given)
    return equal_computations([var1], [var2])
