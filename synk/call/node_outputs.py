"""What a call returns from another node: outputs that its ranks have combined.

Node 0 combines the outputs of all ranks. Of those that are many a node sends what its
own ranks give together: as much as one rank's, and not as its ranks'. Few are sent as
the ranks have them, so that they are combined in the order of ranks, as on one machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cluster.by_rank import goes_by_rank
from ..ranks.context import RankContext
from ..reduce_ops import combine
from .outputs import IN_FIRST


def combined_here(
    context: RankContext, args: tuple, replies: list[tuple | None]
) -> list[tuple | None]:
    """Return the replies of this node's ranks as they are sent to node 0.

    Parameters
    ----------
    context : RankContext
        Of the node's master.
    args : tuple
        The arguments of `worker_call`.
    replies : list
        What that has returned on each rank.
    """
    present = [reply for reply in replies if reply is not None]
    weights = [rows for _, rows in present]
    if len(present) < 2 or not sum(weights):  # without any rows all ranks count alike
        return replies
    number, subset, *_ = args[0][0]
    ops = context.registry.functions[number].spec.wire_ops
    made: dict[int, np.ndarray] = {}
    for i in subset:
        op = ops[i]
        if op is None or op == "gather" or i not in present[0][0]:
            continue  # what goes in a tree has no value of each rank
        values = [context.array(outputs[i]) for outputs, _ in present]
        first = values[0]
        are_alike = all(v.shape == first.shape for v in values)  # or node 0 says so
        if are_alike and not goes_by_rank(op, first.dtype, first.nbytes):
            made[i] = np.asarray(combine(op, values, weights))
    if not made:
        return replies
    return _with(replies, made)


def _with(
    replies: list[tuple | None], made: dict[int, np.ndarray]
) -> list[tuple | None]:
    """Return replies in which the first rank's has what all have made."""
    found: list[tuple | None] = []
    of_node: dict[int, Any] = made
    for reply in replies:
        if reply is None:
            found.append(None)
            continue
        outputs, rows = reply
        found.append(({**outputs, **of_node}, rows))
        of_node = dict.fromkeys(made, IN_FIRST)
    return found
