"""`theano.sparse.sharedvar`: shared variables that hold sparse matrices."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.sparse", "pytensor.sparse.sharedvar"
)
