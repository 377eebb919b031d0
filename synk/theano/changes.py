"""What `import theano` changes of PyTensor, for scripts of Theano's time.

Three things, each once in a process: the update that a shared variable takes, the
rewrites of FAST_COMPILE, and ``bool(variable)``. Who does not import `theano` has
PyTensor as it is.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType, FunctionType, ModuleType
from typing import Any

from pytensor.compile import SharedVariable, predefined_modes, predefined_optimizers
from pytensor.graph import Apply
from pytensor.scalar import GE, GT, LE, LT
from pytensor.tensor import TensorVariable, tensor_copy
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from .pytensor_versions import quiet


@cache
def register() -> None:
    """Make all three changes."""
    of_any_length = property(
        THEIR_DEFAULT_UPDATE.fget,
        _set_default_update,
        doc=THEIR_DEFAULT_UPDATE.__doc__,
    )
    SharedVariable.default_update = of_any_length  # type: ignore[method-assign, assignment]
    _keep_logarithms_finite()
    _have_variables_be_true()


# -- Default updates whose shape is known in more detail than their variable's
#
#     average = theano.shared(numpy.zeros(30))            # a vector of any length
#     average.default_update = 0.9 * average + 0.1 * x.mean(0)   # of 30, if x has 30
#
# PyTensor (2.38.3, 3.0.7) takes such an update when it is set, and refuses it when a
# function is compiled: "Cannot convert Type Vector(float64, shape=(30,)) into
# Vector(float64, shape=(?,))". Theano knew no lengths but 1, so its scripts have them:
# the running averages of Lasagne's batch normalisation are such updates. ``updates=``
# of a function are not concerned. ``test_theano_programs.py`` tells when PyTensor takes
# them by itself.

THEIR_DEFAULT_UPDATE: Any = SharedVariable.__dict__["default_update"]
"""PyTensor's property."""


def _set_default_update(shared: SharedVariable, update: Any) -> None:
    with quiet():
        THEIR_DEFAULT_UPDATE.fset(shared, update)
        found = shared.default_update
        wanted: Any = shared.type
        if found is None or found.type == wanted or not isinstance(wanted, TensorType):
            return
        # What the graph takes for a copy; its type says no more than the variable's.
        copy = Apply(tensor_copy, [found], [wanted()])
        THEIR_DEFAULT_UPDATE.fset(shared, copy.outputs[0])


# -- FAST_COMPILE with the rewrites that keep logarithms finite
#
# ``log(softmax(x))`` at logits of 1000 is -2844.8 in Theano's FAST_COMPILE, and minus
# infinity in PyTensor's, which leaves these rewrites to FAST_RUN. Scripts of Theano's
# time rely on them.

TAGS = ("stabilize", "log1p_neg_sigmoid", "local_mul_specialize")
"""What is added: a group of rewrites, one that is not tagged as its group is, and one
that has ``-1 * x`` written as ``-x``, which that one needs."""


def _keep_logarithms_finite() -> None:
    for name in ("fast_compile", "o1", "o2"):
        predefined_optimizers[name] = predefined_optimizers[name].including(*TAGS)
    # In place: "FAST_COMPILE" is one object in Theano's modules and in PyTensor's.
    mode = predefined_modes["FAST_COMPILE"]
    mode.__setstate__((mode.linker, mode.provided_optimizer.including(*TAGS)))


# -- ``bool(variable)``: True in Theano, an error in PyTensor
#
# ``if not input:`` was how scripts asked whether they were given a variable at all. In
# PyTensor it is a TypeError, which has saved many from ``if x > 0:``. Theano raised for
# comparisons only. Which of the two it is depends on who asks: code that has names of
# Theano's, and what it calls, gets Theano's answer. PyTensor's own modules, and scripts
# that use PyTensor alone, get PyTensor's, also in a process in which something else has
# imported `theano`.

OURS = "synk.theano"

FOR_PYTENSOR = {"pytensor", "pymc", "pymc_extras", "bambi"}
"""Packages whose code is written for PyTensor's answer."""


def _have_variables_be_true() -> None:
    theirs = TensorVariable.__bool__

    def __bool__(self: TensorVariable) -> bool:
        if _is_comparison(self) or not _uses_theano(sys._getframe(1)):
            return theirs(self)
        return True

    TensorVariable.__bool__ = __bool__  # type: ignore[method-assign, assignment]


def _is_comparison(variable: TensorVariable) -> bool:
    """Tell whether a variable is one of ``<``, ``<=``, ``>``, ``>=``."""
    op = variable.owner.op if variable.owner is not None else None
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, LT | LE | GT | GE)


def _uses_theano(frame: FrameType | None) -> bool:
    """Tell whether code that asks, or whoever called it, has a name of Theano's."""
    while frame is not None:
        place = str(frame.f_globals.get("__name__", ""))
        if place.partition(".")[0] in FOR_PYTENSOR:
            return False
        if not place.startswith("synk."):
            names = (*frame.f_globals.values(), *frame.f_locals.values())
            if any(_is_name_of_theanos(value) for value in names):
                return True
        frame = frame.f_back
    return False


def _is_name_of_theanos(value: Any) -> bool:
    # Others are not asked: a user's object may do anything when it is.
    if isinstance(value, ModuleType):
        place = value.__name__
    elif isinstance(value, FunctionType | type):
        place = value.__module__
    else:
        return False
    return isinstance(place, str) and f"{place}.".startswith(f"{OURS}.")
