"""A part that is sums over rows, run for blocks of rows that stay in a core's cache.

What a compiled graph computes on the way, such as ``X @ w`` and functions of it, is
then read while it is in the cache. Whether that wins is seen on real calls: some are
run in one go and some in blocks, in turns, and then the faster way is taken. A rank
chooses for itself, as its values are the same to rounding either way, and no other rank
waits within a part. The blocks are added up in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, Protocol

from pytensor.graph.basic import Variable
from pytensor.tensor.random.type import RandomType

from ..compiler.kept import Kept
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Cut, Part, Stage
from ..memory.partition import cuts, part_lengths
from ..ops import is_reduced
from ..reduce_ops import Accumulator, ReduceOp, shares
from ..times.timing import Times

BYTES = 1 << 20
"""Of rows in a block: about what a core's second-level cache holds."""

FROM = 4 * BYTES
"""Bytes of rows from which on it is tried."""

TRIALS = 4
"""Calls of each kind that are timed."""

GAIN = 0.95
"""What blocks must take, at most, of the time in one go."""


class Call(Protocol):
    """What is needed of one rank's part in a call: see `one_call`."""

    rows: list[Any]
    values: dict[Variable, Any]
    cut: Cut
    times: Times

    def run_part(self, piece: Part) -> None:
        """Run a part and keep what it computes."""

    def outputs_of(self, piece: Part, padded: bool) -> list[Any]:
        """Run a part on the rows taken."""


@dataclass
class Trial:
    """The times of a part, of so many rows, by the number of blocks.

    Attributes
    ----------
    blocks : int
        How many are tried.
    seconds : dict of int to list of float
    chosen : int or None
        The number of blocks; None while it is tried.
    """

    blocks: int
    seconds: dict[int, list[float]] = field(default_factory=dict)
    chosen: int | None = None

    def next(self) -> int:
        """Return in how many blocks the next call is run."""
        if self.chosen is not None:
            return self.chosen
        times = {k: self.seconds.setdefault(k, []) for k in (1, self.blocks)}
        return min(times, key=lambda k: len(times[k]))

    def took(self, blocks: int, seconds: float) -> None:
        """Take note of a call's time, and choose when there are enough."""
        self.seconds[blocks].append(seconds)
        if all(len(times) == TRIALS for times in self.seconds.values()):
            whole, cut = min(self.seconds[1]), min(self.seconds[self.blocks])
            self.chosen = self.blocks if cut < GAIN * whole else 1


def are_many(rows: Sequence[Any]) -> bool:
    """Tell whether rows of inputs are so many that blocks may win."""
    return sum([array.nbytes for array in rows]) >= FROM


def is_to_repeat(spec: FunctionSpec) -> bool:
    """Tell whether results are to be those of every run to the bit."""
    return not spec.is_chosen


class Blocks:
    """The parts of a function on one rank that blocks of rows can be added up for.

    Parameters
    ----------
    spec : FunctionSpec

    Attributes
    ----------
    can_be : bool
        Whether any part can go in blocks.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self._sums: dict[Variable, ReduceOp] = dict(spec.sums)
        if spec.sliceable or spec.call_variables or is_to_repeat(spec):
            self._sums = {}
        self.can_be = bool(self._sums)
        self._can: dict[int, bool] = {}
        self.trials: dict[tuple[int, int], Trial] = {}
        """By the identity of a part, and the binary digits of a number of rows."""

    def run(self, call: Call, stage: Stage, kept: Kept | None) -> bool:
        """Run a stage's part and keep what it computes, if it can go in blocks.

        Parameters
        ----------
        call : Call
            Of many rows, and not padded.
        stage : Stage
        kept : Kept, optional
            The part that computed terms which this one receives.

        Returns
        -------
        bool
            False if nothing was done.
        """
        part = stage.merged
        if id(part) not in self._can:
            self._can[id(part)] = self._is_of_sums(part, call.cut, kept)
        if not self._can[id(part)]:
            return False
        nbytes = sum(rows.nbytes for rows in call.rows)
        rows = len(call.rows[0])
        key = id(part), rows.bit_length()
        if key not in self.trials:
            self.trials[key] = Trial(min(rows, nbytes // BYTES))
        trial = self.trials[key]
        blocks, start = trial.next(), perf_counter()
        if blocks == 1:
            call.run_part(part)
        else:
            call.values.update(self._added_up(call, part, blocks, kept))
        if trial.chosen is None and not call.times.is_fresh:
            trial.took(blocks, perf_counter() - start)
        return True

    def _is_of_sums(self, part: Part, cut: Cut, kept: Kept | None) -> bool:
        """Tell whether all that a part makes of rows is sums or averages over them."""
        if part.updates or any(isinstance(var.type, RandomType) for var in part.reads):
            return False
        rows = [] if kept is None else kept.rows
        whole = [var for var in part.receives if var not in rows]
        of_rows = cut.on_rows.intersection(part.wants)
        return (
            bool(of_rows)
            and of_rows <= self._sums.keys()
            and all(map(is_reduced, whole))
        )

    def _added_up(
        self, call: Call, part: Part, blocks: int, kept: Kept | None
    ) -> dict[Variable, Any]:
        rows, values = call.rows, call.values
        found: dict[Variable, Any] = {}
        bounds = cuts(len(rows[0]), blocks)
        of_rows = [] if kept is None else kept.rows
        totals: dict[Variable, Accumulator] = {}
        try:
            weights = shares(part_lengths(bounds))
            for (start, stop), share in zip(pairwise(bounds), weights, strict=True):
                call.rows = [array[start:stop] for array in rows]
                call.values = values | {v: values[v][start:stop] for v in of_rows}
                results = call.outputs_of(part, False)
                found = dict(zip(part.wants, results, strict=True))
                for var in call.cut.on_rows.intersection(part.wants):
                    if var not in totals:
                        totals[var] = Accumulator(self._sums[var], found[var].dtype)
                    totals[var].add(found[var], share)
        finally:
            call.rows, call.values = rows, values
        # What no row enters is the same in every block.
        return found | {var: total.result() for var, total in totals.items()}
