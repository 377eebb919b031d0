"""Random streams: each rank's own, or one that all ranks have alike."""

from __future__ import annotations

from collections.abc import Callable

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from ..domain import (
    OwnStream,
    Refused,
    Replicated,
    Unknown,
    Value,
    is_replicated,
    unlisted,
)


def is_stream(var: Variable) -> bool:
    """Tell whether a variable is the state of a random stream."""
    return isinstance(var.type, RandomType)


def by_streams(rule: Callable, node: Apply, values: list[Value]) -> list[Value]:
    """Return what the outputs of an Op are that takes random streams.

    From streams that all ranks have alike, and from what else is the same on every
    rank, it draws the same numbers everywhere. Of draws from the ranks' own streams
    the Op's rule tells.
    """
    if not any(isinstance(value, OwnStream) for value in values):
        for value in values:
            if isinstance(value, Unknown):
                return [value] * len(node.outputs)
        if not all(is_replicated(unlisted(value)) for value in values):
            raise Refused("draws for rows from a stream that all ranks have alike")
        return [Replicated() for _ in node.outputs]
    if not isinstance(node.op, (RandomVariable, HasInnerGraph)):
        values = [Replicated() if isinstance(v, OwnStream) else v for v in values]
    found = rule(node, values)
    if not isinstance(found, list):
        found = [found] * len(node.outputs)
    return [
        OwnStream() if is_stream(var) and not isinstance(value, Unknown) else value
        for var, value in zip(node.outputs, found, strict=True)
    ]
