"""What a rank is told of a call besides its arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable


@dataclass
class CallVariables:
    """What a rank is told of a call besides its arguments: integers, without rows.

    Attributes
    ----------
    total : Variable
        The number of rows on all ranks, to compute with.
    first : Variable
        How many rows come before the first of this rank's, or of this slice's.
    as_long : Variable
        An array as long as all rows are, of rows without elements: shapes that follow
        from its shape JAX knows when it compiles, and those from `total` it does not.
    """

    total: Variable
    first: Variable
    as_long: Variable

    @classmethod
    def new(cls) -> CallVariables:
        """Make the variables."""
        as_long = pt.tensor("as_long_as_all_rows", shape=(None, 0), dtype="int8")
        return cls(pt.lscalar("rows_of_all_ranks"), pt.lscalar("first_row"), as_long)

    @property
    def length(self) -> Any:
        """The number of rows on all ranks, as a length."""
        as_long: Any = self.as_long
        return as_long.shape[0]
