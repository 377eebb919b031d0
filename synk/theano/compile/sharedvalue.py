"""`theano.compile.sharedvalue`: shared variables."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.functions", "pytensor.compile.sharedvalue"
)
