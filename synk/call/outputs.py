"""The outputs of a call: which are wanted, and how the ranks' values are combined.

A rank's reply is (outputs, number of its rows), or None without rows. The master's own
outputs are a list, in the order of the subset. A worker's are a dict of windows, only
those that the master needs, by position in the function; of outputs that are combined
in a tree the subtrees, by `TreeOutput.key`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..compiler.spec import FunctionSpec
from ..errors import ShapeMismatch
from ..programs.programs import Subset
from ..ranks.context import RankContext
from ..reduce_ops import OutputOp, ReduceOp, combine
from ..reduce_tree import TreeOutput, merge_trees

IN_FIRST = None
"""Stands for a rank's output that its node has combined with its first rank's."""


class Wanted:
    """The outputs that a call returns, and how: `returns` is "one", "list" or "none".

    `order` has positions among the function's outputs, as the caller asked for them.
    The `subset` to compute has each of these once, ascending.
    """

    def __init__(self, returns: str, order: Sequence[int]) -> None:
        self._returns = returns
        self.subset = tuple(sorted(set(order)))
        self._places = [self.subset.index(i) for i in order]

    def of(self, output_subset: Sequence[int] | None) -> Wanted:
        """Return the `Wanted` of a call; `self` must be that of all outputs."""
        if output_subset is None:
            return self
        outputs = len(self.subset)
        for i in output_subset:
            if not -outputs <= operator.index(i) < outputs:
                raise IndexError(
                    f"output_subset has {i}, out of range for {outputs} outputs"
                )
        return Wanted("list", [i % outputs for i in output_subset])

    def arrange(self, results: list) -> Any:
        """Put the results of the subset into the order and form asked for."""
        if self._returns == "list":
            return [results[place] for place in self._places]
        return results[0] if self._returns == "one" else None


def combine_outputs(
    spec: FunctionSpec,
    subset: Subset,
    replies: Sequence[tuple | None],
    context: RankContext,
    what: object,
    ops: Sequence[OutputOp] | None = None,
) -> list[np.ndarray]:
    """Return the outputs of a call, combined by `ops`, by default the function's.

    `replies` are all ranks'. Errors name the function by `what`.
    """
    present = [reply for reply in replies if reply is not None]
    ops, results = ops or spec.wire_ops, []
    own, others = present[0][0], [outputs for outputs, _ in present[1:]]
    whole: list[Any] = []  # rank 0's outputs, with trees merged; empty without rows
    if isinstance(own, list):
        whole = merge_trees(own, lambda key: [context.array(of[key]) for of in others])
    for position, i in enumerate(subset):
        op = ops[i]
        if whole and type(own[position]) is TreeOutput:
            results.append(whole[position])
            continue
        values: list[np.ndarray] = []
        weights: list[int] = []
        for outputs, rows in present if op is not None else present[:1]:
            value = outputs[position if isinstance(outputs, list) else i]
            if value is IN_FIRST:
                weights[-1] += rows
            else:
                values.append(context.array(value))
                weights.append(rows)
        if op is not None:
            results.append(_reduced(spec, i, op, values, weights, what))
        elif isinstance(own, list) or not isinstance(values[0], np.ndarray):
            results.append(values[0])
        else:  # a view of another rank's memory
            results.append(values[0].copy())
    return results


def _reduced(
    spec: FunctionSpec,
    i: int,
    op: ReduceOp | Literal["gather"],
    values: list[np.ndarray],
    weights: list[int],
    what: object,
) -> np.ndarray:
    """Combine the ranks' values of one output by its op."""
    shapes = [value.shape for value in values]
    if op == "gather":
        shapes = [shape[1:] for shape in shapes]
    if any(shape != shapes[0] for shape in shapes):
        raise ShapeMismatch(
            f"{spec.findings[i].label} of {what} has different shapes on the"
            f" ranks, {[value.shape for value in values]}: it cannot be combined by"
            f" {op!r}; is it to be gathered?"
        )
    if op == "gather":
        return np.concatenate([np.atleast_1d(value) for value in values])
    result, dtype = combine(op, values, weights), values[0].dtype
    if dtype.kind in "iu" and op == "avg" and not spec.findings[i].named:
        return np.rint(result).astype(dtype)  # "avg" without a proof: synk has warned
    return result
