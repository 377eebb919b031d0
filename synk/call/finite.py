"""``check="finite"``: finds values of a call that are not finite, and the row at fault.

A combined value does not show whose row it came from. So the plain function is run on
the first n rows of the call, and a bisection finds the smallest n with a bad value: a
value that is NaN for some rows stays NaN with more of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compiler.spec import FunctionSpec
from ..engines import host
from ..errors import NotFinite
from ..memory.partition import part
from ..programs.programs import Subset
from ..ranks.context import RankContext
from ..ranks.session import SESSION
from .arguments import CallRows
from .serial import SerialRun, label_of


class FiniteCheck:
    """The check of one call with the arguments `values`."""

    def __init__(
        self, serial: SerialRun, values: Sequence, rows: CallRows, subset: Subset
    ) -> None:
        self._serial, self._values = serial, values
        self._rows, self._subset = rows, subset
        # Labels of values that are not finite, by position in a serial run's results.
        self._found: dict[int, str] = {}
        self._restore = updates_kept(serial.spec)

    def check(self, number: int, results: Sequence) -> None:
        """Raise NotFinite if an output, or a new value on any rank, is not finite.

        Called within the launch, which is undone by that. `located` returns the error
        for the user.
        """
        spec = self._serial.spec
        for place, (i, value) in enumerate(zip(self._subset, results, strict=True)):
            if not _is_finite(value):
                self._found[place] = spec.findings[i].label
        by_rank = SESSION.run(worker_not_finite, number)
        for i, (var, _) in enumerate(spec.plain_updates):
            ranks = [rank for rank, found in enumerate(by_rank) if i in found]
            if ranks:
                where = f" on rank {ranks[0]}" if len(ranks) < len(by_rank) else ""
                self._found[len(self._subset) + i] = label_of(var) + where
        if self._found:
            self._restore()
            raise NotFinite(", ".join(self._found.values()))

    def located(self, what: str) -> NotFinite:
        """Return the error, which names the row at fault and that row's rank.

        Call this after the call was undone, as the search needs the variables' former
        values. Functions without a serial run, such as those that draw random numbers,
        get an error without a row.
        """
        text = f"{what}: not finite: {', '.join(self._found.values())}"
        rows = self._rows
        if not rows.total or not self._serial.is_possible:
            return NotFinite(text)
        row = _first_row(rows.total, self._is_bad)
        if row is None:
            why = "no single row makes it so, see the variables and other inputs"
            return NotFinite(f"{text}; {why}")
        rank = bisect.bisect_right(rows.bounds, row) - 1
        which = f"row {row} of the call is the first with which it is so"
        return NotFinite(f"{text}; {which}, one of rank {rank}'s")

    def _is_bad(self, start: int, stop: int) -> bool:
        """Return whether rows `start` to `stop` alone make a value not finite."""
        some = part(self._rows.selection, start, stop)
        results, _ = self._serial.run(self._values, some, self._subset)
        return not all(_is_finite(results[place]) for place in self._found)


def worker_not_finite(context: RankContext, number: int) -> list[int]:
    """Return the numbers of a function's updates that are not finite on this rank."""
    updates = context.functions[number].spec.updates
    values = (host.get_value(var) for var, _ in updates)
    return [i for i, value in enumerate(values) if not _is_finite(value)]


def _is_finite(value: Any) -> bool:
    """Return whether all numbers of a value are finite; True if it has no floats."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or np.dtype(dtype).kind not in "fc":
        return True
    if hasattr(value, "nnz"):  # a sparse matrix: look at the stored numbers
        value = value.data
    return bool(np.isfinite(np.asarray(value)).all())


def _first_row(total: int, is_bad: Callable[[int, int], bool]) -> int | None:
    """Return the first row with which the rows up to it are bad.

    None if no single row is at fault. ``is_bad(a, b)`` is for rows ``a`` to ``b``.
    """
    if not is_bad(0, total):
        return None  # summed in this other order, the values are finite
    # The key is whether the rows up to `last` are bad: False, then True.
    row = bisect.bisect_left(
        range(total), True, hi=total - 1, key=lambda last: is_bad(0, last + 1)
    )
    others = {1, total // 2, total - 1} - {0}
    if not row and others and all(is_bad(each, each + 1) for each in others):
        return None  # every row is bad: the variables are at fault, say
    return row


def updates_kept(spec: FunctionSpec) -> Callable[[], None]:
    """Return a function that gives the updated variables their present values again.

    Only a single rank needs it: its compiled code makes updates in place, which the
    transaction cannot undo. With more ranks the function does nothing.
    """
    variables = [var for var, _ in spec.plain_updates if SESSION.size == 1]
    before = [(var, host.copy_value(host.get_value(var))) for var in variables]

    def restore() -> None:
        for var, value in before:
            host.set_value(var, value)

    return restore
