"""`TensorVariable` as Theano had it: not the class of shared variables and constants.

In PyTensor, a shared variable is a ``TensorVariable``; in Theano it was not, and code
tells parameters from expressions by that (recurrent layers of Lasagne their initial
states).
"""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph import Constant

__all__ = ["TensorVariable"]


class _Plain(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or (
            issubclass(subclass, pt.TensorVariable)
            and not issubclass(subclass, SharedVariable | Constant)
        )

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return pt.TensorVariable(*args, **kwargs)

    def __getattr__(cls, name: str) -> Any:
        return getattr(pt.TensorVariable, name)


class TensorVariable(metaclass=_Plain):
    """The class of expressions and inputs; making one makes PyTensor's."""
