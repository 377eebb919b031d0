"""Parts of an epoch: what lies in memory at a time, and the batches that it has."""

from __future__ import annotations

from typing import Any, NamedTuple


class Part(NamedTuple):
    """Some batches of an epoch, and arrays that have their rows.

    ``step.run(part.batches, *part.inputs)`` makes their steps.

    Attributes
    ----------
    batches : list
        For each step, what `batch` is in a call.
    inputs : tuple
        The inputs of the step, Data or array_like.
    """

    batches: list
    inputs: tuple[Any, ...]
