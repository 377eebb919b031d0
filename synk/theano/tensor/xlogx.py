"""`theano.tensor.xlogx`: x log x and x log y, 0 where x is."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "synk.theano.tensor.written")
