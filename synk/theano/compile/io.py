"""`theano.compile.io`: inputs and outputs of a function."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "synk.theano.functions", "pytensor.compile.io")
