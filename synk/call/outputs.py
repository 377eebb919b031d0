"""The outputs of a call: which are wanted, and the ranks' values made into one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from ..compiler.spec import FunctionSpec
from ..errors import ShapeMismatch
from ..programs.programs import Subset
from ..ranks.context import RankContext
from ..reduce_ops import OutputOp, ReduceOp, combine
from ..reduce_tree import TreeOutput, settled


class Wanted:
    """The outputs that a call returns.

    Parameters
    ----------
    returns : {"one", "list", "none"}
        In which form.
    order : sequence of int
        Positions among the function's outputs, in the order asked for. Ascending, and
        each once, they are the subset: what is to be computed.
    """

    def __init__(self, returns: str, order: Sequence[int]) -> None:
        self._returns = returns
        self.subset = tuple(sorted(set(order)))
        self._places = [self.subset.index(i) for i in order]

    def of(self, output_subset: Sequence[int] | None) -> Wanted:
        """Return what a call with `output_subset` returns, of all these outputs.

        Raises
        ------
        IndexError
            If there is no such output.
        """
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


IN_FIRST = None
"""Stands for an output that is in that of the first rank of its node: both together."""


class Reply(NamedTuple):
    """What one rank's share of a call has come to; on its way a plain tuple.

    Attributes
    ----------
    outputs : list of numpy.ndarray or TreeOutput, or dict of int to Window
        The master's own in the order of the subset; other ranks' by their position in
        the function, and only those that the master needs. Where a node has combined
        an output, `IN_FIRST` on its ranks but the first.
    rows : int
        How many rows are behind them.
    """

    outputs: Any
    rows: int


def rows_of(replies: Sequence[tuple | None]) -> tuple[int, ...]:
    """Return on how many rows each rank has computed."""
    return tuple([0 if reply is None else reply[1] for reply in replies])  # as `Reply`


def combine_outputs(
    spec: FunctionSpec,
    subset: Subset,
    replies: Sequence[tuple | None],
    context: RankContext,
    what: object,
    ops: Sequence[OutputOp] | None = None,
) -> list[np.ndarray]:
    """Reduce the ranks' outputs; those of ranks that were idle are not there.

    Parameters
    ----------
    replies : sequence
        A `Reply` of each rank, as a tuple.
    what : object
        What was called, for messages.
    ops : sequence of str or None, optional
        By which outputs are combined, if not by the function's.

    Raises
    ------
    ShapeMismatch
        If the shapes on the ranks do not fit together.
    """
    present = [Reply(*reply) for reply in replies if reply is not None]
    ops, results = ops or spec.wire_ops, []
    own, others = present[0].outputs, [reply.outputs for reply in present[1:]]
    whole: list[Any] = []  # where rank 0 has rows, as it has of what goes in a tree
    if isinstance(own, list):
        whole = settled(own, lambda key: [context.array(each[key]) for each in others])
    for position, i in enumerate(subset):
        op = ops[i]
        if whole and type(own[position]) is TreeOutput:
            results.append(whole[position])
            continue
        values: list[np.ndarray] = []
        weights: list[int] = []
        for reply in present if op is not None else present[:1]:
            outputs = reply.outputs
            value = outputs[position if isinstance(outputs, list) else i]
            if value is IN_FIRST:
                weights[-1] += reply.rows
            else:
                values.append(context.array(value))
                weights.append(reply.rows)
        if op is not None:
            results.append(_reduced(spec, i, op, values, weights, what))
        elif isinstance(own, list) or not isinstance(values[0], np.ndarray):
            results.append(values[0])
        else:  # which lies in another rank's memory
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
        return np.rint(result).astype(dtype)  # for want of a proof, and with a warning
    return result
