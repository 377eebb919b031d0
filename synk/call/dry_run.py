"""A call that is made and rolled back: for its time alone."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType

from ..compiler.spec import FunctionSpec
from ..engines import host
from ..ranks.session import SESSION


class _RolledBack(Exception):
    """Raised in a launch, which is undone by that."""


class DryRun:
    """A ``with`` block around a launch that is to be undone.

    Attributes
    ----------
    made : float
        When the call had been made.
    """

    def __init__(self, spec: FunctionSpec) -> None:
        self.made = 0.0
        # One rank alone makes its updates in its compiled code, and keeps nothing.
        variables = [var for var, _ in spec.updates if SESSION.size == 1]
        values = [host.copy_value(host.get_value(var)) for var in variables]
        self._before = list(zip(variables, values, strict=True))

    def roll_back(self, number: int, results: list) -> None:
        """Note the time, in the end of the launch, and have it undone."""
        self.made = perf_counter()
        raise _RolledBack

    def __enter__(self) -> DryRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        for var, value in self._before:
            host.set_value(var, value)
        return kind is _RolledBack
