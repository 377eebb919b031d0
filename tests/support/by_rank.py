"""What all ranks hold of a shared variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.compile import SharedVariable
from reference import assert_same

import synk


def by_rank(variables: SharedVariable | Sequence[SharedVariable]) -> list:
    """Return the value on each rank, or a list of values for each."""
    return [synk.get_value(rank, variables) for rank in range(synk.size())]


def assert_on_ranks(
    variable: SharedVariable, values: Any, ulps: float = 2, err_msg: str = ""
) -> None:
    """Assert what a variable is on each rank: a list by rank, or one value on all."""
    given = values if isinstance(values, list) else [values] * synk.size()
    for rank, (got, right) in enumerate(zip(by_rank(variable), given, strict=True)):
        assert_same(got, right, ulps, err_msg=f"{err_msg} on rank {rank}")
