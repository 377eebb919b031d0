"""Sessions of few sizes, and what their ranks hold and where they meet."""

from collections.abc import Sequence
from typing import Any

import pytest
from pytensor.compile import SharedVariable
from reference import assert_same

import synk

one_and_three_ranks = pytest.mark.parametrize(
    "ranks", [1, 3], ids="{}ranks".format, indirect=True
)

three_ranks = pytest.mark.parametrize("ranks", [3], ids="{}ranks".format, indirect=True)
"""On two cores three ranks take less than two: they do not watch for each other."""


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


def levels(f: synk.Function) -> list[list[str]]:
    """Return by what ops each stage of a function combines values."""
    stages = f.explain().to_dict()["stages"]
    return [
        sorted(value["op"] for value in stage["reduces"])
        for stage in stages
        if stage["reduces"]
    ]
