"""Updates that write only some elements of a variable.

``(table, inc_subtensor(table[rows], steps))`` changes the rows of one batch in a table
of millions. To make a new table would take many times as long as the rest of a call. So
a call computes what to write, and writes it at the end into the variable's own array.
The old elements are kept, to undo the call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor import basic as ptb
from pytensor.tensor import subtensor as pts
from pytensor.tensor.type import DenseTensorType

from .rules.base import PUTTING
from .rules.index import entries_of_index


@dataclass(frozen=True)
class Written:
    """An update of some elements: which, and by what."""

    node: Apply  # the set or increment, whose first input is the variable
    takes: tuple[Variable, ...]  # the written values, and the index's variables

    def new_value(self, shared: SharedVariable, taken: Sequence[Variable]) -> Variable:
        """Return the graph of the new value, with `taken` in place of `takes`."""
        known = dict(zip(self.takes, taken, strict=True))

        def stand_in(var: Variable) -> Variable:
            tensor = _tensor_of(var)
            if tensor not in known:
                return var
            found = known[tensor]
            return found if tensor is var else ptb.scalar_from_tensor(found)

        inputs = list(map(stand_in, self.node.inputs[1:]))
        return self.node.op.make_node(shared, *inputs).outputs[0]

    def index(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the index for numpy, given the `values` of `takes`."""
        known = dict(zip(self.takes, values, strict=True))

        def value(part: Any) -> Any:
            if not isinstance(part, Variable):
                return part
            return part.data if isinstance(part, Constant) else known[_tensor_of(part)]

        return tuple(
            slice(*map(value, (entry.start, entry.stop, entry.step)))
            if isinstance(entry, slice)
            else value(entry)
            for entry in entries_of_index(self.node, 2)
        )


def written(shared: SharedVariable, new: Variable) -> Written | None:
    """Return an update as `Written`; None if it makes a whole new value."""
    node = new.owner
    ops = (pts.IncSubtensor, *PUTTING)
    if node is None or not isinstance(node.op, ops) or node.inputs[0] is not shared:
        return None
    takes = [
        _tensor_of(var) for var in node.inputs[1:] if not isinstance(var, Constant)
    ]
    if not all(isinstance(var.type, DenseTensorType) for var in takes):
        return None  # before PyTensor 3.1, a slice with computed bounds
    return Written(node, tuple(dict.fromkeys(takes)))


def _tensor_of(var: Variable) -> Variable:
    """Return the tensor behind a scalar of an index; `var` if it is a tensor."""
    if var.owner is not None and isinstance(var.owner.op, ptb.ScalarFromTensor):
        return var.owner.inputs[0]
    return var
