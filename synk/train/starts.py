"""Trainings that all begin alike: what a step begins with is given back before each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np

from ..call.function import Function
from ..engines import host
from ..ranks.session import SESSION
from . import saved
from .trainer import Trainer


class Start:
    """The values of all that a step reads or updates, on all ranks.

    Parameters
    ----------
    step : Function
    """

    def __init__(self, step: Function) -> None:
        SESSION.enter()
        self._updated = step.updated
        self._holdings = [SESSION.ledger.of(var) for var in self._updated]
        self._arrays = saved.take_values(self._updated)
        # Of others, as a rate, the value itself: nothing writes to it in place.
        others = [var for var in step.get_shared() if var not in self._updated]
        self._others = [(var, host.get_value(var)) for var in others]

    def restore(self) -> None:
        """Give all of them the values that they had."""
        for var, value in self._others:
            if not _is(host.get_value(var), value):
                host.set_value(var, value)
        if SESSION.state == "running":
            SESSION.enter()
            what = "it was given its starting value"
            saved.give_values(self._updated, self._arrays, self._holdings, what)
        else:  # ranks were lost, or the session is over
            saved.give_in_script(self._updated, self._arrays)


def _is(present: object, value: object) -> bool:
    """Tell whether a value is what it was; an engine may have brought it elsewhere."""
    if present is value or not isinstance(value, np.ndarray):
        return present is value
    return np.array_equal(present, value)  # type: ignore[arg-type]


@contextlib.contextmanager
def from_one_start(trainer: Trainer) -> Iterator[Callable[[], Trainer]]:
    """Give what returns trainers like one, each at the start, in a ``with`` block.

    What was there before the block is there after it. By a rule they are the same
    workers again and again, so that a rule is compiled once.
    """
    start = Start(trainer.step)
    made: list[Trainer] = []

    def anew() -> Trainer:
        start.restore()
        made.append(trainer._anew(made.pop() if made else None))
        return made[-1]

    try:
        yield anew
    finally:
        start.restore()
        if made:
            trainer._take_over(made.pop())
