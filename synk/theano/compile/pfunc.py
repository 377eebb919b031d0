"""`theano.compile.pfunc`: `function` under its older name, and inputs of it."""

from ..forwarding import forward
from ..functions import pfunc

__all__ = ["pfunc"]

__getattr__, __dir__ = forward(
    __name__, "synk.theano.functions", "pytensor.compile", "pytensor.compile.rebuild"
)
