"""`theano.tensor.elemwise`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.tensor.elemwise", "pytensor.tensor.math", "pytensor.tensor"
)
