"""`theano.tensor.opt`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.raise_op", "pytensor.tensor.shape")
