"""``bool(variable)``: True in Theano, an error in PyTensor.

``if not input:`` was how scripts asked whether they were given a variable at all. In
PyTensor it is a TypeError, which has saved many from ``if x > 0:``. Theano raised for
comparisons only.

Which of the two it is depends on who asks: code that has names of Theano's, and what
it calls, gets Theano's answer. PyTensor's own modules, and scripts that use PyTensor
alone, get PyTensor's, also in a process in which something else has imported `theano`.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType, FunctionType, ModuleType
from typing import Any

from pytensor.scalar import GE, GT, LE, LT
from pytensor.tensor import TensorVariable
from pytensor.tensor.elemwise import Elemwise

__all__ = ["register"]

OURS = "synk.theano"

FOR_PYTENSOR = {"pytensor", "pymc", "pymc_extras", "bambi"}
"""Packages whose code is written for PyTensor's answer."""


def _is_name_of_theanos(value: Any) -> bool:
    # Others are not asked: a user's object may do anything when it is.
    if isinstance(value, ModuleType):
        place = value.__name__
    elif isinstance(value, FunctionType | type):
        place = value.__module__
    else:
        return False
    return isinstance(place, str) and f"{place}.".startswith(f"{OURS}.")


def _uses_theano(frame: FrameType | None) -> bool:
    """Tell whether code that asks, or whoever called it, has a name of Theano's."""
    while frame is not None:
        place = str(frame.f_globals.get("__name__", ""))
        if place.partition(".")[0] in FOR_PYTENSOR:
            return False
        if not place.startswith("synk."):
            names = (*frame.f_globals.values(), *frame.f_locals.values())
            if any(map(_is_name_of_theanos, names)):
                return True
        frame = frame.f_back
    return False


def is_comparison(variable: TensorVariable) -> bool:
    """Tell whether a variable is one of ``<``, ``<=``, ``>``, ``>=``."""
    op = variable.owner.op if variable.owner is not None else None
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, LT | LE | GT | GE)


@cache
def register() -> None:
    """Have variables answer as Theano's where Theano's names are used."""
    theirs = TensorVariable.__bool__

    def __bool__(self: TensorVariable) -> bool:
        if is_comparison(self) or not _uses_theano(sys._getframe(1)):
            return theirs(self)
        return True

    TensorVariable.__bool__ = __bool__  # type: ignore[method-assign, assignment]
