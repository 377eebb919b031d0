"""A call that is made and undone: for its time alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from time import perf_counter

from ..compiler.spec import FunctionSpec
from ..engines import host
from ..ranks.session import SESSION


class _Undone(Exception):
    """Raised in a launch, which is undone by that."""


class Came:
    """What a launch calls in the end: it notes the time, and has the launch undone.

    Attributes
    ----------
    came : float
        When it was called.
    """

    came = 0.0

    def __call__(self, number: int, results: list) -> None:
        """Note the time."""
        self.came = perf_counter()
        raise _Undone


@contextlib.contextmanager
def undone(spec: FunctionSpec) -> Iterator[Came]:
    """Return what is to be called in a launch, in a ``with`` block around it."""
    # One rank alone makes its updates in its compiled code, and keeps nothing.
    variables = [var for var, _ in spec.updates if SESSION.size == 1]
    before = [(var, host.copy_value(host.get_value(var))) for var in variables]
    try:
        yield Came()
    except _Undone:
        pass
    finally:
        for var, value in before:
            host.set_value(var, value)
