"""Updates that write to some elements of a variable, and leave all others as they are.

``(table, inc_subtensor(table[rows], steps))`` changes the rows of one batch in a table
of millions. To make a new table of it would take many times as long as all the rest of
a call. So what is to be written is computed, and written at the end of the call, into
the variable's own array; what was there before is kept.
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
    """What is written where."""

    node: Apply  # of the Op, on the variable itself
    takes: tuple[Variable, ...]  # what is written and, of the index, what is computed

    def new_value(self, shared: SharedVariable, taken: Sequence[Variable]) -> Variable:
        """Return the new value of a variable, where `taken` stands for `takes`."""
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
        """Return the index for numpy, by the values of `takes`."""
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
    """Return what an update writes, if it leaves the other elements as they are."""
    node = new.owner
    ops = (pts.IncSubtensor, *PUTTING)
    if node is None or not isinstance(node.op, ops) or node.inputs[0] is not shared:
        return None
    takes = [
        _tensor_of(var) for var in node.inputs[1:] if not isinstance(var, Constant)
    ]
    if not all(isinstance(var.type, DenseTensorType) for var in takes):
        return None  # slices with bounds that are computed, before PyTensor 3.1
    return Written(node, tuple(dict.fromkeys(takes)))


def _tensor_of(var: Variable) -> Variable:
    """Return the tensor that a scalar of an index is made of."""
    if var.owner is not None and isinstance(var.owner.op, ptb.ScalarFromTensor):
        return var.owner.inputs[0]
    return var
