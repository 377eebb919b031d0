"""`theano.tensor.opt`: PyTensor's rewrites, and assertions."""

from pytensor.raise_op import assert_op as assert_

from ..forwarding import forward

__all__ = ["assert_"]

__getattr__, __dir__ = forward(
    __name__,
    "pytensor.raise_op",
    "pytensor.tensor.shape",
    "pytensor.tensor.rewriting.basic",
)
