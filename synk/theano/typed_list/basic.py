"""`theano.typed_list.basic`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.typed_list.basic", "pytensor.typed_list"
)
