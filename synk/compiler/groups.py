"""Whether each row fills the groups of elements that a reshape makes, call by call.

``x.reshape((-1, 2, 2))`` needs a number of elements that is a multiple of four. All
rows may have it, and a rank's not. Where each row by itself fills whole groups, any
rows do. The graph may not say how many elements a row has; the arguments of a call do.
So what has to hold is noted when a function is made, and asked of each call's arguments
(``call.groups``). Where it does not hold the function is made once more, with
`careful`: all rows are reshaped together then.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import graph_inputs

from .sizes import sizes_from_inputs

Filled = tuple[Variable, Variable]
"""How many elements there are, and how many make a group: of the inputs' shapes."""


@dataclass
class _Noted:
    inputs: frozenset[Variable]
    careful: bool
    found: dict[Apply, Filled | None] = field(default_factory=dict)


_noted: ContextVar[_Noted | None] = ContextVar("_noted", default=None)


@contextlib.contextmanager
def noted(inputs: Iterable[Variable], careful: bool) -> Iterator[list[Filled]]:
    """Note what calls are to be asked; in the list, once this is over.

    Parameters
    ----------
    inputs : iterable of Variable
        Whose shapes a call tells.
    careful : bool
        Take it that rows do not fill their groups.
    """
    state = _Noted(frozenset(inputs), careful)
    token = _noted.set(state)
    asked: list[Filled] = []
    try:
        yield asked
    finally:
        _noted.reset(token)
        asked += [found for found in state.found.values() if found is not None]


def are_filled(node: Apply, axis: int) -> bool:
    """Tell whether each row fills groups, if calls whose rows do not are seen to.

    Parameters
    ----------
    node : Apply
        Of `Reshape`.
    axis : int
        Whose length is -1. The others make a group.
    """
    state = _noted.get()
    if state is None:
        return True  # on a rank, which is told nothing else
    if state.careful:
        return False
    if node not in state.found:
        state.found[node] = _sizes(node, axis, state.inputs)
    return state.found[node] is not None


def _sizes(node: Apply, axis: int, inputs: frozenset[Variable]) -> Filled | None:
    source, shape = node.inputs
    ndim = node.outputs[0].type.ndim
    others = [i for i in range(ndim) if i != axis]
    elements = _product(source.shape[i] for i in range(source.type.ndim))  # type: ignore[attr-defined]
    group = _product(shape[i] for i in others)  # type: ignore[index]
    found = sizes_from_inputs([elements, group])
    if len(found) < 2:
        return None
    for root in graph_inputs(list(found.values())):
        if root not in inputs and not isinstance(root, (Constant, SharedVariable)):
            return None  # the rows of all ranks, or within a scan
    return found[elements], found[group]


def _product(numbers: Iterable[Any]) -> Any:
    return functools.reduce(operator.mul, numbers, pt.constant(1, dtype="int64"))
