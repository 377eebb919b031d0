"""Default updates whose shape is known in more detail than their shared variable's.

    average = theano.shared(numpy.zeros(30))            # a vector of any length
    average.default_update = 0.9 * average + 0.1 * x.mean(0)   # of 30, if x has 30

PyTensor (2.38.3, 3.0.7) takes such an update when it is set, and refuses it when a
function is compiled: "Cannot convert Type Vector(float64, shape=(30,)) into
Vector(float64, shape=(?,))". Theano knew no lengths but 1, so its scripts have them:
the running averages of Lasagne's batch normalisation are such updates. ``updates=`` of
a function are not concerned.

``test_theano_versions.py`` tells when PyTensor takes them by itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.graph import Apply, Variable
from pytensor.tensor import tensor_copy
from pytensor.tensor.type import TensorType

from .pytensor_versions import quiet

theirs: Any = SharedVariable.__dict__["default_update"]
"""PyTensor's property."""


def of_type(update: Variable, wanted: TensorType) -> Variable:
    """Return a copy, as far as the graph goes, whose type says no more than `wanted`.

    Parameters
    ----------
    update : Variable
        Of a type that `wanted` includes.
    wanted : TensorType
        The type of the shared variable.
    """
    return Apply(tensor_copy, [update], [wanted()]).outputs[0]


def _set(shared: SharedVariable, update: Any) -> None:
    with quiet():
        theirs.fset(shared, update)
        found = shared.default_update
        wanted: Any = shared.type
        if found is None or found.type == wanted or not isinstance(wanted, TensorType):
            return
        theirs.fset(shared, of_type(found, wanted))


@cache
def register() -> None:
    """Have PyTensor's shared variables set their default updates by `of_type`."""
    of_any_length = property(theirs.fget, _set, doc=theirs.__doc__)
    SharedVariable.default_update = of_any_length  # type: ignore[method-assign, assignment]
