"""`theano.sparse.basic`: the functions of `theano.sparse`."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.sparse", "pytensor.sparse.basic", "pytensor.sparse.math"
)
