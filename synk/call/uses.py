"""Functions for other rooms of synk, about a `Function`; scripts do not use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..choice.plan import Predicted, predict
from ..ranks.session import SESSION
from ..report.bits import ANY, bits_of
from .arguments import gather
from .function import Function


def why_refused(function: Function) -> str | None:
    """Return why several ranks cannot compute the function; None if they can."""
    return function._spec.refused


def predicted(
    function: Function, args: Sequence[Any], ranks: int, cores: int
) -> Predicted | None:
    """Return the predicted seconds of a call, or None; `cores` are all ranks'."""
    usual = function._usual
    arranged = usual.arrangement.arranged(args)
    if arranged is None:
        return None
    rows, given = gather(usual.spec, *arranged, SESSION.size)
    return predict(usual.plans.facts(rows.total, given.arrays, ranks, cores))


def has_bits_of_any_ranks(function: Function) -> bool:
    """Return whether calls as the last have the same bits on any number of ranks."""
    usual = function._usual
    outputs, updates = bits_of(usual.spec, usual.plans.last.plan)
    return all(bits == ANY for bits in (*outputs, *updates))


def spelled(function: Function) -> str:
    """Return the function's graph as a text, the same in every run of the script."""
    return function._usual.plans.spelled


def takes_own_rows(
    function: Function, num_slices: int = 1, output_subset: Sequence[int] | None = None
) -> bool:
    """Return whether each rank reads only its own rows of the scattered inputs."""
    usual, ledger = function._usual, SESSION.ledger
    if any(ledger.of(var).kind == "sharded" for var in usual.placement.variables):
        return False  # another variant makes the calls, with further inputs
    subset, planned = usual.all.of(output_subset).subset, usual.plans.last
    _, kind = planned.block_and_kind(subset, num_slices)
    return not planned.replicas.local().cut(kind, subset).inputs_read


def run_as_workers(
    function: Function,
    workers: int,
    *args: Any,
    are_nodes: bool = False,
    **options: Any,
) -> Any:
    """Make a run whose calls are steps of a training rule.

    `workers` is the rule's number in `RankContext.workers`. Each rank is a worker; with
    `are_nodes` the ranks of a machine are one worker, and make each step together.
    """
    function._train_as(workers, are_nodes)
    try:
        return function.run(*args, **options)
    finally:
        function._train_as(None)
