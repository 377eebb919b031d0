"""Whether rows of a call fill the groups that reshapes make; see `compiler.groups`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs

from ..compiler.spec import FunctionSpec


class Groups:
    """Asks the arguments of calls whether each row fills groups by itself."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._sizes = [size for sizes in spec.filled for size in sizes]
        self._n = len(spec.inputs)
        roots = set(graph_inputs(self._sizes))
        inputs = [*spec.inputs, *spec.bcast_inputs]
        self._places = [i for i, var in enumerate(inputs) if var in roots]
        stand_ins = dict(zip(spec.stand_ins, spec.sliceable, strict=True))
        self._sliceable = [var for var in stand_ins if var in roots]
        self._shared = [var for var in roots if isinstance(var, SharedVariable)]
        self._variables = [
            *(inputs[i] for i in self._places),
            *self._sliceable,
            *self._shared,
        ]
        self._values_of = [
            *(stand_ins[var] for var in self._sliceable),
            *self._shared,
        ]
        self._left: Callable | None = None
        self._asked: tuple[tuple, bool] | None = None

    def are_filled(self, values: Sequence[Any]) -> bool:
        """Tell whether each row of some arguments does, whatever rows come together."""
        if not self._sizes:
            return True
        shapes = tuple(self._shapes(values))
        if self._asked is None or self._asked[0] != shapes:
            self._asked = shapes, self._found(shapes)
        return self._asked[1]

    def _shapes(self, values: Sequence[Any]) -> Iterator[tuple[int, ...]]:
        """Yield the shapes of one row of each input, and of others as they are."""
        for i in self._places:
            shape = tuple(np.shape(values[i]))
            yield (1, *shape[1:]) if i < self._n else shape
        for i, shared in enumerate(self._values_of):
            value = shared.get_value(borrow=True, return_internal_type=True)
            shape = tuple(np.shape(value))
            yield (1, *shape[1:]) if i < len(self._sliceable) else shape

    def _found(self, shapes: tuple) -> bool:
        if self._left is None:
            self._left = _compiled(self._variables, self._sizes)
        arrays = [
            np.broadcast_to(np.zeros((), var.type.dtype), shape)
            for var, shape in zip(self._variables, shapes, strict=True)
        ]
        try:
            return not any(self._left(*arrays))
        except (TypeError, ValueError):
            return True  # the call says what is wrong with its arguments


def _compiled(variables: list[Variable], sizes: list[Any]) -> Callable:
    """Return what computes how many elements are left, from arrays of some shapes."""
    given = {var: var.type() for var in variables}
    sizes = clone_replace(sizes, given)
    left = [
        elements % pt.maximum(group, 1)  # none are left where there are none
        for elements, group in zip(sizes[::2], sizes[1::2], strict=True)
    ]
    mode = Mode("py", "fast_compile")
    return pytensor.function([*given.values()], left, mode=mode)
