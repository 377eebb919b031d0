"""What a rank is told of a call besides its arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable


@dataclass
class CallVariables:
    """Integers, and lengths; no rows.

    Attributes
    ----------
    total : Variable
        The number of rows on all ranks, to compute with.
    first : Variable
        How many rows come before the first of this rank's, or of this slice's.
    as_long : Variable
        An array as long as all rows are, of rows without elements: shapes that follow
        from its shape JAX knows when it compiles, and those from `total` it does not.
    none_of : dict of int to Variable
        By the number of an input with rows, an array of none of its rows, from whose
        shape ranks without any know how long the other axes are.
    """

    total: Variable
    first: Variable
    as_long: Variable
    none_of: dict[int, Variable] = field(default_factory=dict)

    @classmethod
    def new(cls) -> CallVariables:
        """Make the variables."""
        as_long = pt.tensor("as_long_as_all_rows", shape=(None, 0), dtype="int8")
        return cls(pt.lscalar("rows_of_all_ranks"), pt.lscalar("first_row"), as_long)

    def none(self, i: int, like: Variable) -> Any:
        """Return an array of none of an input's rows."""
        if i not in self.none_of:
            shape = 0, *like.type.shape[1:]
            # Not `pt.tensor`, to which a name such as "<Matrix(int8)>" may be a dtype.
            self.none_of[i] = pt.TensorType("int8", shape)(f"none_of_{like}")
        return self.none_of[i]

    def variables(self) -> list[Variable]:
        """Return all of them."""
        return [self.total, self.first, self.as_long, *self.none_of.values()]

    @property
    def length(self) -> Any:
        """The number of rows on all ranks, as a length."""
        as_long: Any = self.as_long
        return as_long.shape[0]
