"""How many bytes the values have that stages reduce: seen in a call, or told before."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

import numpy as np
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.type import DenseTensorType

from ..compiler.spec import FunctionSpec
from ..programs.programs import Programs

Shape = tuple[int, ...]


class Sizes:
    """The sizes of a function's reduced values.

    Parameters
    ----------
    spec : FunctionSpec
    programs : Programs
        The master's, which has seen shapes in calls.
    """

    def __init__(self, spec: FunctionSpec, programs: Programs) -> None:
        self._spec, self._seen = spec, programs.shapes

    def of(self, var: Variable) -> int | None:
        """Return the bytes of a reduced value, if they are known."""
        shape = self._shape(var)
        if shape is None:
            return None
        return var.type.numpy_dtype.itemsize * int(np.prod(shape, dtype=np.int64))

    def _shape(self, var: Variable) -> Shape | None:
        shape = self._seen.get(var, var.type.shape)
        if None not in shape:
            return shape
        assert var.owner is not None
        shared = self._by_name.get(var.owner.op.gradient)
        if shared is not None:
            return shared.get_value(borrow=True).shape
        return self._in_updates.get(var)

    @cached_property
    def _by_name(self) -> dict[str, SharedVariable]:
        """The variables of which a gradient may be, by those names that one has."""
        variables = self._spec.shared_variables()
        count = Counter(map(str, variables))
        return {str(var): var for var in variables if count[str(var)] == 1}

    @cached_property
    def _in_updates(self) -> dict[Variable, Shape]:
        found: dict[Variable, Shape] = {}
        for shared, new in self._spec.updates:
            found |= _shapes(shared, new)
        return found


def _shapes(shared: SharedVariable, new: Variable) -> dict[Variable, Shape]:
    """Return shapes of what makes the new value of a variable, as far as its own tells.

    What goes into an elementwise Op, and is repeated along no axis, has the shape of
    what comes out.
    """
    if not isinstance(shared.type, DenseTensorType):
        return {}
    found = {new: shared.get_value(borrow=True).shape}
    todo = [new]
    while todo:
        made = todo.pop()
        node = made.owner
        if node is None or not isinstance(node.op, (Elemwise, DimShuffle)):
            continue
        given, shape = list(node.inputs), found[made]
        if isinstance(node.op, DimShuffle):
            shape = _before(node.op, shape)
        else:
            kind = made.type.broadcastable
            given = [var for var in given if var.type.broadcastable == kind]
        new_ones = [var for var in given if var not in found]
        found |= dict.fromkeys(new_ones, shape)
        todo += new_ones
    return found if found.get(shared) == found[new] else {}


def _before(op: DimShuffle, shape: Shape) -> Shape:
    """Return the shape of which a DimShuffle makes another; axes it drops are of 1."""
    lengths = dict(zip(op.new_order, shape, strict=True))
    return tuple(lengths.get(axis, 1) for axis in range(op.input_ndim))
