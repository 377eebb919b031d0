"""Functions of `theano.gof`, `theano.gradient` and `theano.printing` on graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import pytensor.printing
from pytensor.compile import MonitorMode as _MonitorMode
from pytensor.graph.basic import Variable as _Variable
from pytensor.graph.basic import equal_computations
from pytensor.graph.replace import clone_replace

from .compiled import plain
from .pytensor_versions import pullback, pushforward

# -- theano.gof


class Variable(_Variable):
    """PyTensor's `Variable`, with an `owner` that may be left out.

    Every variable of PyTensor is an instance of this class.
    """

    def __init__(
        self, type: Any, owner: Any = None, index: int | None = None, name: Any = None
    ) -> None:
        super().__init__(type, owner, index, name)

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        if cls is Variable:
            # `issubclass` would recurse, as this is a subclass of PyTensor's class.
            return _Variable in other.__mro__
        return NotImplemented


def is_same_graph(var1: Any, var2: Any, givens: Any = None) -> bool:
    """Return whether two variables have the same graph.

    ``(x * y) * z`` is another graph than ``x * (y * z)``. Variables in `givens`, a dict
    or pairs, are replaced first, in both graphs.
    """
    if givens:
        given = dict(givens)
        var1, var2 = (given.get(var, var) for var in (var1, var2))
        var1, var2 = clone_replace([var1, var2], given)
    return equal_computations([var1], [var2])


def ancestors(
    variable_list: Iterable[_Variable], blockers: Collection[_Variable] | None = None
) -> list[_Variable]:
    """Return the variables of a list and all variables from which they are computed.

    They are in Theano's order: from the *last* variable of the list to the first, each
    once, followed by its inputs, depth first and from left to right. Lasagne's
    ``collect_shared_vars`` makes lists of parameters so, and weights in files have this
    order. The search does not go beyond `blockers`.
    """
    stop = frozenset(blockers or ())
    found: dict[_Variable, None] = {}
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
    variable_list: Iterable[_Variable], blockers: Collection[_Variable] | None = None
) -> list[_Variable]:
    """Return the `ancestors` without owner: inputs, constants and shared variables."""
    return [var for var in ancestors(variable_list, blockers) if var.owner is None]


# -- theano.gradient


def Lop(f: Any, wrt: Any, eval_points: Any, *args: Any, **kwargs: Any) -> Any:
    """Return `eval_points` times the Jacobian of `f` with respect to `wrt`."""
    return pullback(f, wrt, eval_points, *args, **kwargs)


def Rop(f: Any, wrt: Any, eval_points: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the Jacobian of `f` with respect to `wrt` times `eval_points`."""
    return pushforward(f, wrt, eval_points, *args, **kwargs)


# -- theano.printing


def debugprint(
    obj: Any,
    depth: int = -1,
    print_type: bool = False,
    file: Any = None,
    ids: str = "CHAR",
    **kwargs: Any,
) -> Any:
    """Print graphs or functions as text; `ids` is PyTensor's `id_type`."""
    options = {"depth": depth, "print_type": print_type, "file": file, "id_type": ids}
    return pytensor.printing.debugprint(plain(obj), **options | kwargs)


def pydotprint(fct: Any, *args: Any, **kwargs: Any) -> Any:
    """Draw a graph; see PyTensor's `pydotprint`."""
    return pytensor.printing.pydotprint(plain(fct), *args, **kwargs)


# -- theano.compile.monitormode


class MonitorMode(_MonitorMode):
    """PyTensor's mode that calls functions before and after each node.

    The functions may take three arguments, as in Theano: the node's number, the node,
    and its thunk, which has `inputs` and `outputs`; or, as in PyTensor, the graph
    first.
    """

    def __init__(
        self, pre_func: Any = None, post_func: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        functions = _with_graph(pre_func), _with_graph(post_func)
        super().__init__(*functions, *args, **kwargs)


def _with_graph(function: Callable | None) -> Callable | None:
    """Return a function of (graph, number, node, thunk), as PyTensor calls it."""
    if function is None:
        return None
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return function  # it takes four arguments
    return lambda _, *of_node: function(*of_node)


def detect_nan(i: int, node: Any, fn: Any) -> None:
    """Print a node that has computed NaN, its inputs and its outputs."""
    for output in fn.outputs:
        value = output[0]
        if isinstance(value, np.random.Generator) or not np.isnan(value).any():
            continue
        print("*** NaN detected ***")
        print(f"{i}: {node}")
        print(f"Inputs : {[cell[0] for cell in fn.inputs]}")
        print(f"Outputs: {[cell[0] for cell in fn.outputs]}")
        return
