"""`theano.compile.nanguardmode`: the mode that looks for NaN."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.compile.nanguardmode", "pytensor.compile.debug.nanguardmode"
)
