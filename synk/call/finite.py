"""``check="finite"``: which value of a call is not finite, and which row made it so.

What ranks have combined does not tell whose rows it came from. So the row is found by
the plain function, on the first so many rows of the call: a value that is NaN for some
rows is so for more of them.
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
    """Looks at the values of one call; `values` are its arguments."""

    def __init__(
        self, serial: SerialRun, values: Sequence, rows: CallRows, subset: Subset
    ) -> None:
        self._serial, self._values = serial, values
        self._rows, self._subset = rows, subset
        # By the place in what a serial run returns.
        self._found: dict[int, str] = {}
        self._restore = updates_kept(serial.spec)

    def check(self, number: int, results: Sequence) -> None:
        """Look at a function's outputs, and at new values of variables on all ranks.

        Raise NotFinite in the launch, so that it is undone; `located` says more then.
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
        """Return the error, with the row that it comes from and whose that is.

        Of functions that have no serial run, as they draw random numbers, it is not
        known. The call must be undone: the row is looked for with the values of shared
        variables that it began with.
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
        """Tell whether some rows of the call by themselves give what is not finite."""
        some = part(self._rows.selection, start, stop)
        results, _ = self._serial.run(self._values, some, self._subset)
        return not all(_is_finite(results[place]) for place in self._found)


def worker_not_finite(context: RankContext, number: int) -> list[int]:
    """Return the updates of a function whose variables are not finite on this rank."""
    updates = context.functions[number].spec.updates
    values = (host.get_value(var) for var, _ in updates)
    return [i for i, value in enumerate(values) if not _is_finite(value)]


def _is_finite(value: Any) -> bool:
    """Tell whether all numbers of a value are finite; of what has none, True."""
    dtype = getattr(value, "dtype", None)
    if dtype is None or np.dtype(dtype).kind not in "fc":
        return True
    if hasattr(value, "nnz"):  # a sparse matrix: what is not stored is 0
        value = value.data
    return bool(np.isfinite(np.asarray(value)).all())


def _first_row(total: int, is_bad: Callable[[int, int], bool]) -> int | None:
    """Return the row that makes the rows up to it bad, if that is one row's.

    Rows ``a`` to ``b`` by themselves are bad if they give what is not finite.
    """
    if not is_bad(0, total):
        return None  # in another order the sum of the same values is finite
    # `bisect` asks whether False < True, for beginnings that end with a row.
    row = bisect.bisect_left(
        range(total), True, hi=total - 1, key=lambda last: is_bad(0, last + 1)
    )
    others = {1, total // 2, total - 1} - {0}
    if not row and others and all(is_bad(each, each + 1) for each in others):
        return None  # of the variables, say
    return row


def updates_kept(spec: FunctionSpec) -> Callable[[], None]:
    """Return what gives variables the values that they have before a call.

    That is for one rank alone, which makes its updates in its compiled code, where a
    call that is undone keeps nothing.
    """
    variables = [var for var, _ in spec.plain_updates if SESSION.size == 1]
    before = [(var, host.copy_value(host.get_value(var))) for var in variables]

    def restore() -> None:
        for var, value in before:
            host.set_value(var, value)

    return restore
