"""`theano.ifelse`: the lazy conditional, PyTensor's."""

from pytensor.ifelse import IfElse, ifelse

__all__ = ["IfElse", "ifelse"]
