"""Changes to PyTensor that `import theano` makes, for scripts of Theano's time.

They are four: the default updates that a shared variable accepts, the rewrites of
FAST_COMPILE, ``bool(variable)``, and the names of a loop's inner graph. Without an
import of `theano`, PyTensor is unchanged.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType, FunctionType, ModuleType
from typing import Any

from pytensor.compile import SharedVariable, predefined_modes, predefined_optimizers
from pytensor.graph import Apply
from pytensor.scalar import GE, GT, LE, LT
from pytensor.scan.op import Scan
from pytensor.tensor import TensorVariable, tensor_copy
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.type import TensorType

from .pytensor_versions import quiet


@cache
def register() -> None:
    """Make all four changes, once in a process."""
    of_any_length = property(
        THEIR_DEFAULT_UPDATE.fget,
        _set_default_update,
        doc=THEIR_DEFAULT_UPDATE.__doc__,
    )
    SharedVariable.default_update = of_any_length  # type: ignore[method-assign, assignment]
    _keep_logarithms_finite()
    _have_variables_be_true()
    # As Blocks reads them, to find the variables of a loop's step.
    Scan.inputs = property(lambda op: op.inner_inputs)  # type: ignore[attr-defined]
    Scan.outputs = property(lambda op: op.inner_outputs)  # type: ignore[attr-defined]


# -- Default updates with a more specific static shape than their variable's
#
#     average = theano.shared(numpy.zeros(30))            # a vector of any length
#     average.default_update = 0.9 * average + 0.1 * x.mean(0)   # of 30, if x has 30
#
# PyTensor (2.38.3, 3.0.7) accepts such an update when it is set, and raises when a
# function is compiled: "Cannot convert Type Vector(float64, shape=(30,)) into
# Vector(float64, shape=(?,))". Theano had no static lengths but 1, so its scripts have
# such updates: for example the running averages of Lasagne's batch normalisation.
# ``updates=`` of a function do not raise. ``test_theano_programs.py`` fails when
# PyTensor accepts them.

THEIR_DEFAULT_UPDATE: Any = SharedVariable.__dict__["default_update"]
"""PyTensor's property."""


def _set_default_update(shared: SharedVariable, update: Any) -> None:
    with quiet():
        THEIR_DEFAULT_UPDATE.fset(shared, update)
        found = shared.default_update
        wanted: Any = shared.type
        if found is None or found.type == wanted or not isinstance(wanted, TensorType):
            return
        # A copy in the graph, whose type is no more specific than the variable's.
        copy = Apply(tensor_copy, [found], [wanted()])
        THEIR_DEFAULT_UPDATE.fset(shared, copy.outputs[0])


# -- FAST_COMPILE with the rewrites that keep logarithms finite
#
# ``log(softmax(x))`` at logits of 1000 is -2844.8 in Theano's FAST_COMPILE, and minus
# infinity in PyTensor's, which leaves these rewrites to FAST_RUN. Scripts of Theano's
# time rely on them.

TAGS = ("stabilize", "log1p_neg_sigmoid", "local_mul_specialize")
"""The rewrites that are added: a group, one that lacks the tag of its group, and one
that writes ``-1 * x`` as ``-x``, which the second needs."""


def _keep_logarithms_finite() -> None:
    for name in ("fast_compile", "o1", "o2"):
        predefined_optimizers[name] = predefined_optimizers[name].including(*TAGS)
    # In place, as Theano's modules and PyTensor's share the object "FAST_COMPILE".
    mode = predefined_modes["FAST_COMPILE"]
    mode.__setstate__((mode.linker, mode.provided_optimizer.including(*TAGS)))


# -- ``bool(variable)``: True in Theano, an error in PyTensor
#
# Theano's scripts test by ``if not input:`` whether a variable was given. In PyTensor
# this is a TypeError, which prevents mistakes such as ``if x > 0:``; Theano raised for
# comparisons only. So the result depends on the caller: code that has names of Theano,
# and code that it calls, gets Theano's. PyTensor's own modules, and scripts that use
# PyTensor alone, get PyTensor's, even if other code has imported `theano`.

OURS = "synk.theano"

FOR_PYTENSOR = {"pytensor", "pymc", "pymc_extras", "bambi"}
"""Packages whose code always gets PyTensor's result."""


def _have_variables_be_true() -> None:
    theirs = TensorVariable.__bool__

    def __bool__(self: TensorVariable) -> bool:
        if _is_comparison(self) or not _uses_theano(sys._getframe(1)):
            return theirs(self)
        return True

    TensorVariable.__bool__ = __bool__  # type: ignore[method-assign, assignment]


def _is_comparison(variable: TensorVariable) -> bool:
    """Return whether a variable is the result of ``<``, ``<=``, ``>`` or ``>=``."""
    op = variable.owner.op if variable.owner is not None else None
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, LT | LE | GT | GE)


def _uses_theano(frame: FrameType | None) -> bool:
    """Return whether the code of a frame, or of one of its callers, uses Theano."""
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
    # Attributes of other objects are not read, as that may run any code.
    if isinstance(value, ModuleType):
        place = value.__name__
    elif isinstance(value, FunctionType | type):
        place = value.__module__
    else:
        return False
    return isinstance(place, str) and f"{place}.".startswith(f"{OURS}.")
