"""What of a density is data, or follows from data alone; and its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar import Cast
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.random.type import RandomType

from ..errors import SplitError

DRAWN = "the model's data are drawn at random in each call, as by pm.Minibatch"


class Given:
    """What of a graph follows from data alone, and where the rest takes it.

    Data are all leaves but the `free` ones.

    Attributes
    ----------
    nodes : list of Apply
        Those that are to be computed in each call, in order.
    uses : list of (Apply, int)
        Which inputs of these are data, or follow from data.
    """

    def __init__(self, graph: Sequence[Variable], free: Sequence[Variable]) -> None:
        nodes = io_toposort([], list(graph))
        found: set[Variable] = set(free)
        kept: set[Apply] = set()
        for node in nodes:
            if not found.isdisjoint(node.inputs):
                found.update(node.outputs)
                kept.add(node)
        needed = {var for node in kept for var in node.inputs} | set(graph)
        for node in reversed(nodes):
            # Another view of data is made in a call, and takes no memory of its own.
            if node in kept or node.outputs[0] not in needed:
                continue
            if is_view(node) and not isinstance(node.inputs[0], Constant):
                kept.add(node)
                needed.update(node.inputs)
        self.nodes = [node for node in nodes if node in kept]
        made = {var for node in self.nodes for var in node.outputs} | set(free)
        self.uses = [
            (node, i)
            for node in self.nodes
            for i, var in enumerate(node.inputs)
            if var not in made
        ]


def is_view(node: Apply) -> bool:
    """Tell whether a node shows an array with other axes, or as another type."""
    op = node.op
    is_cast = isinstance(op, Elemwise) and isinstance(op.scalar_op, Cast)
    return is_cast or isinstance(op, DimShuffle)


class Sources:
    """The values of some variables that follow from data alone.

    Shared variables, such as ``pm.Data`` makes, may get other values; constants stay.
    It is a SplitError if they are drawn at random.
    """

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._computed = [
            var
            for var in dict.fromkeys(variables)
            if not isinstance(var, (Constant, SharedVariable))
        ]
        self._plain = [var for var in variables if var not in set(self._computed)]
        self.shared = [
            var
            for var in dict.fromkeys(ancestors(list(variables)))
            if isinstance(var, SharedVariable)
        ]
        if any(isinstance(var.type, RandomType) for var in self.shared):
            raise SplitError(DRAWN)
        self._function = None
        if self._computed:
            self._function = pytensor.function(
                [], self._computed, mode="FAST_COMPILE", on_unused_input="ignore"
            )
        self._held: list[Any] = []
        self.values: dict[Variable, np.ndarray] = {}
        self.read()

    def read(self) -> None:
        """Take the values as they are now."""
        self._held = [var.get_value(borrow=True) for var in self.shared]
        values = {
            var: var.get_value(borrow=True)
            if isinstance(var, SharedVariable)
            else var.data  # type: ignore[attr-defined]
            for var in self._plain
        }
        if self._function is not None:
            values |= dict(zip(self._computed, self._function(), strict=True))
        self.values = values

    @property
    def are_changed(self) -> bool:
        """Whether a shared variable has got another value, as by ``pm.set_data``."""
        return any(
            var.get_value(borrow=True) is not held
            for var, held in zip(self.shared, self._held, strict=True)
        )


def are_alike(var: Variable, axis: int) -> bool:
    """Tell whether data are the same all along an axis, and will be."""
    if not isinstance(var, Constant):
        return False
    values = np.asarray(var.data)
    first = values.take([0], axis)
    is_nan = values.dtype.kind in "fc"
    return np.array_equal(
        values, np.broadcast_to(first, values.shape), equal_nan=is_nan
    )
