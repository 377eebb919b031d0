"""`theano.gof.graph.inputs` and `ancestors`, in Theano's order.

Lists of parameters are made by it, and so the order of weights in files: Lasagne's
``collect_shared_vars`` asks for the inputs of an expression.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pytensor.graph.basic import Variable

__all__ = ["ancestors", "inputs"]


def ancestors(
    variable_list: Iterable[Variable], blockers: Collection[Variable] | None = None
) -> list[Variable]:
    """Return all variables that some are computed from, themselves included.

    Parameters
    ----------
    variable_list : iterable of Variable
        Where to begin, from the *last* one to the first.
    blockers : collection of Variable, optional
        What the search does not go beyond.

    Returns
    -------
    list of Variable
        Each once: a variable, then what it is computed from, depth first and from left
        to right.
    """
    stop = frozenset(blockers or ())
    found: dict[Variable, None] = {}
    ahead = list(variable_list)
    while ahead:
        variable = ahead.pop()
        if variable in found:
            continue
        found[variable] = None
        if variable.owner is not None and variable not in stop:
            ahead.extend(reversed(variable.owner.inputs))
    return list(found)


def inputs(
    variable_list: Iterable[Variable], blockers: Collection[Variable] | None = None
) -> list[Variable]:
    """Return what some variables are computed from and nothing computes.

    Parameters
    ----------
    variable_list, blockers
        As for `ancestors`, which has the order.

    Returns
    -------
    list of Variable
        Shared variables and constants among them.
    """
    return [var for var in ancestors(variable_list, blockers) if var.owner is None]
