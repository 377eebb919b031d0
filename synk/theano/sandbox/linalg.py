"""`theano.sandbox.linalg`: older place of the linear algebra."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.tensor.nlinalg", "synk.theano.tensor.slinalg"
)
