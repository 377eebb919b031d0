"""What other rooms ask of a function, beside what scripts do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..choice.plan import Predicted, predict
from ..ranks.session import SESSION
from ..report.bits import ANY, bits_of
from .arguments import gather
from .function import Function


def why_refused(function: Function) -> str | None:
    """Return why more than one rank cannot compute it, whatever its arguments are."""
    return function._spec.refused


def predicted(
    function: Function, args: Sequence[Any], ranks: int, cores: int
) -> Predicted | None:
    """Return the seconds that a call is predicted to take so many ranks and cores."""
    usual = function._usual
    arranged = usual.arrangement.arranged(args)
    if arranged is None:
        return None
    rows, given = gather(usual.spec, *arranged, SESSION.size)
    return predict(usual.plans.facts(rows.total, given.arrays, ranks, cores))


def has_bits_of_any_ranks(function: Function) -> bool:
    """Tell whether any number of ranks gives the bits of calls such as the last one."""
    usual = function._usual
    outputs, updates = bits_of(usual.spec, usual.plans.last.plan)
    return all(bits == ANY for bits in (*outputs, *updates))


def spelled(function: Function) -> str:
    """Return its graph as a text, which is the same in other runs of the script."""
    return function._usual.plans.spelled


def takes_own_rows(
    function: Function, num_slices: int = 1, output_subset: Sequence[int] | None = None
) -> bool:
    """Tell whether ranks read no rows of scattered inputs but their own."""
    usual, ledger = function._usual, SESSION.ledger
    if any(ledger.of(var).kind == "sharded" for var in usual.placement.variables):
        return False  # then another variant, of further inputs, makes the calls
    subset, planned = usual.all.of(output_subset).subset, usual.plans.last
    _, kind = planned.way(subset, num_slices)
    return not planned.replicas.local().cut(kind, subset).inputs_read


def run_as_workers(
    function: Function,
    workers: int,
    *args: Any,
    are_nodes: bool = False,
    **options: Any,
) -> Any:
    """Run calls that are steps of the ranks as workers of a training rule.

    The workers go by their number in `RankContext.workers`. With `are_nodes` the ranks
    of a machine are one worker, and make a step together.
    """
    function._train_as(workers, are_nodes)
    try:
        return function.run(*args, **options)
    finally:
        function._train_as(None)
