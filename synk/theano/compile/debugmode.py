"""`theano.compile.debugmode`: the mode that checks Ops."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.compile.debugmode", "pytensor.compile.debug.debugmode"
)
